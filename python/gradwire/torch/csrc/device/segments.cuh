// Which tensor of a bucket, or frame of an exchange, a block works on.
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

}  // namespace gradwire
