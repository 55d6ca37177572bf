#include "shadow.h"

namespace emulated::races {

namespace {

void clear(Cell& cell) {
    cell.accesses.clear();
    cell.left_out = {};
}

}  // namespace

Cell& Shadow::cell(std::uintptr_t address) {
    const std::uintptr_t number = address / page_bytes;
    if (last_ == nullptr || number != last_number_) {
        auto& page = pages_[number];
        if (!page) page = std::make_unique<Page>();
        if (page->age != age_) {
            for (Cell& cell : page->cells) clear(cell);
            page->age = age_;
        }
        last_ = page.get();
        last_number_ = number;
    }
    return last_->cells[address % page_bytes / cell_bytes];
}

void Shadow::forget(std::uintptr_t from, std::size_t bytes) {
    for (std::uintptr_t at = from / cell_bytes * cell_bytes; at < from + bytes; at += cell_bytes) clear(cell(at));
}

void Shadow::forget_all() {
    // Memory that tests have long given back need not be kept in mind.
    constexpr std::size_t most_pages = 2048;
    if (pages_.size() > most_pages) pages_.clear();
    ++age_;
    last_ = nullptr;
}

}  // namespace emulated::races
