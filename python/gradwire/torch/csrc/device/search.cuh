// Looking up in a list in order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace gradwire {

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
