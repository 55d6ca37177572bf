// What has lately been done to each byte of memory: its shadow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "place.h"

namespace emulated::races {

constexpr unsigned cell_bytes = 8;

// What lanes of one warp did at one moment to some bytes of a cell.
struct Access {
    std::uint32_t warp = 0, lanes = 0;
    Moment moment;
    std::uint8_t bytes = 0;  // of the cell, a bit each
    bool writes = false;
    bool strong = false;  // atomic or volatile: strong ones do not race with each other
    const Clock* clock = nullptr;  // what they knew; to compare, it may be no more
    Place place;

    // Whether what holds of one for all others holds of this one too, but for the lanes.
    bool is_as(const Access& other) const {
        return warp == other.warp && moment == other.moment && clock == other.clock && bytes == other.bytes &&
               writes == other.writes && strong == other.strong;
    }

    // Whether who conflicts with the other conflicts with this one too.
    bool covers(const Access& other) const {
        return (other.bytes & ~bytes) == 0 && (writes || !other.writes) && (!strong || other.strong);
    }
    bool conflicts(const Access& other) const {
        return (bytes & other.bytes) && (writes || other.writes) && !(strong && other.strong && bytes == other.bytes);
    }
};

struct Cell {
    std::vector<Access> accesses;
    Access left_out;  // the last one, if nothing was taken down since
};

class Shadow {
  public:
    // The cell at an address that is a multiple of its size.
    Cell& cell(std::uintptr_t address);

    void forget(std::uintptr_t from, std::size_t bytes);
    void forget_all();

  private:
    static constexpr std::uintptr_t page_bytes = 4096;

    struct Page {
        std::uint64_t age = 0;
        Cell cells[page_bytes / cell_bytes];
    };

    std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
    std::uint64_t age_ = 1;  // a page of another is empty
    std::uintptr_t last_number_ = 0;
    Page* last_ = nullptr;
};

}  // namespace emulated::races
