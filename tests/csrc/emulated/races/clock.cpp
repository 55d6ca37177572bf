#include "clock.h"

#include <algorithm>

namespace emulated::races {

namespace {

struct ByNumber {
    template <class Entry>
    bool operator()(const Entry& entry, std::uint32_t number) const {
        return entry.first < number;
    }
};

}  // namespace

Moment Known::of(std::uint32_t number) const {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), number, ByNumber{});
    return at != entries_.end() && at->first == number ? at->second : Moment{};
}

void Known::raise(std::uint32_t number, Moment to) {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), number, ByNumber{});
    if (at == entries_.end() || at->first != number)
        entries_.insert(at, {number, to});
    else
        at->second = std::max(at->second, to);
}

void Known::join(const Known& other) {
    if (other.entries_.empty()) return;
    std::vector<std::pair<std::uint32_t, Moment>> both;
    both.reserve(entries_.size() + other.entries_.size());
    auto a = entries_.begin();
    for (const auto& entry : other.entries_) {
        while (a != entries_.end() && a->first < entry.first) both.push_back(*a++);
        both.push_back(entry);
        if (a != entries_.end() && a->first == entry.first) both.back().second = std::max(entry.second, a++->second);
    }
    both.insert(both.end(), a, entries_.end());
    entries_ = std::move(both);
}

void Clock::learn_block(std::uint32_t block, Moment before) {
    blocks_.raise(block, before);
    threads_.keep_if([&](std::uint32_t thread, Moment known) { return thread / block_threads_ != block || before < known; });
}

void Clock::join(const Clock& other) {
    blocks_.join(other.blocks_);
    threads_.join(other.threads_);
    threads_.keep_if([&](std::uint32_t thread, Moment known) { return blocks_.of(thread / block_threads_) < known; });
}

SharedClock joined(const SharedClock& a, const SharedClock& b) {
    if (a == b || !b) return a;
    if (!a) return b;
    auto both = std::make_shared<Clock>(*a);
    both->join(*b);
    return both;
}

}  // namespace emulated::races
