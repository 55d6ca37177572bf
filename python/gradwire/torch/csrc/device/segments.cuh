// Looking up in lists in order: which tensor of a bucket, or frame of an exchange, a block works on.
#pragma once

#include "launch.cuh"

namespace gradwire {

// The first of some numbers, from `low` on to before `high`, that a condition does not hold for, if it holds for all
// before that one; else `high`. Of "its square is below 10", from 0 to 8, it is 4.
template <class T, class Condition>
__device__ T partition_point(T low, T high, Condition holds) {
    while (low < high) {
        const T middle = low + (high - low) / 2;
        if (holds(middle))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The segment that holds `index`: `starts` has `count + 1` ascending numbers, the first is 0, and
// `index` is less than the last. Segments without elements hold nothing.
template <class T>
__device__ inline unsigned segment_of(const T* starts, unsigned count, T index) {
    return partition_point(1u, count, [&](unsigned i) { return starts[i] <= index; }) - 1;
}

// The first place of an ascending list whose position is not below one: how many are below it.
__device__ inline std::uint64_t first_from(const std::uint32_t* positions, std::uint64_t count,
                                           std::uint64_t position) {
    return partition_point(std::uint64_t{0}, count, [&](std::uint64_t i) { return positions[i] < position; });
}

}  // namespace gradwire
