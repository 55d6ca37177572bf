// What a thread knows that others have done: the order of a launch's accesses.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace emulated::races {

// When a thread does something: the barriers that its block has behind it, then its own steps since.
// A thread steps where it tells others what it has done.
struct Moment {
    std::uint32_t phase = 0, step = 0;
    auto operator<=>(const Moment&) const = default;
};

// Up to which moment each of some is known; the others not at all. In order of the numbers.
class Known {
  public:
    Moment of(std::uint32_t number) const;
    void raise(std::uint32_t number, Moment to);
    void join(const Known& other);

    template <class Keep>
    void keep_if(Keep keep) {
        std::erase_if(entries_, [&](const auto& entry) { return !keep(entry.first, entry.second); });
    }

  private:
    std::vector<std::pair<std::uint32_t, Moment>> entries_;
};

// What is known of all blocks' threads together, and of single threads beyond that.
class Clock {
  public:
    explicit Clock(std::uint32_t threads_of_a_block) : block_threads_(threads_of_a_block) {}

    // Whether what the thread did at a moment is known.
    bool knows(std::uint32_t thread, Moment moment) const {
        return moment < blocks_.of(thread / block_threads_) || moment < threads_.of(thread);
    }
    bool knows_block(std::uint32_t block, Moment moment) const { return moment < blocks_.of(block); }

    void learn(std::uint32_t thread, Moment before) { threads_.raise(thread, before); }
    void learn_block(std::uint32_t block, Moment before);
    void join(const Clock& other);

  private:
    std::uint32_t block_threads_;
    Known blocks_, threads_;
};

// Threads that know the same share a clock: it does not change any more.
using SharedClock = std::shared_ptr<const Clock>;

// What either knows. Null knows nothing.
SharedClock joined(const SharedClock& a, const SharedClock& b);

}  // namespace emulated::races
