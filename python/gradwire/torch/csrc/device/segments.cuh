// Looking up in lists in order: which tensor of a bucket, or frame of an exchange, a block works on.
#pragma once

#include "launch.cuh"

namespace gradwire {

// The segment that holds `index`: `starts` has `count + 1` ascending numbers, the first is 0, and
// `index` is less than the last. Segments without elements hold nothing.
template <class T>
__device__ inline unsigned segment_of(const T* starts, unsigned count, T index) {
    unsigned low = 0, high = count;  // starts[low] <= index < starts[high]
    while (high - low > 1) {
        const unsigned middle = low + (high - low) / 2;
        if (starts[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The first place of an ascending list whose position is not below one: how many are below it.
__device__ inline std::uint64_t first_from(const std::uint32_t* positions, std::uint64_t count,
                                           std::uint64_t position) {
    std::uint64_t low = 0, high = count;
    while (low < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (positions[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

}  // namespace gradwire
