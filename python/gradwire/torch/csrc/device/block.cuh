// What the threads of a block do together. All of them must call, from the same place.
#pragma once

#include "warp.cuh"

namespace gradwire {

// One value of each warp: what a block exchanges through shared memory.
template <class T, unsigned Threads>
struct PerWarp {
    static_assert(Threads % warp_threads == 0 && Threads <= 1024);
    T value[Threads / warp_threads];
};

// All values of the block combined, in every thread: within warps first, then over warps in order.
template <unsigned Threads, class T, class Combine>
__device__ T block_reduce(T value, Combine combine) {
    using Shared = PerWarp<T, Threads>;
    GRADWIRE_SHARED(Shared, shared);
    value = warp_reduce(value, combine);
    if (lane() == 0) shared.value[warp()] = value;
    __syncthreads();
    T total = shared.value[0];
    for (unsigned other = 1; other < Threads / warp_threads; ++other)
        total = combine(total, shared.value[other]);
    __syncthreads();
    return total;
}

template <class T>
struct Scanned {
    T before;  // what the threads before this one have, combined
    T total;   // what all threads have
};

// The sum of the values of the threads before this one, in order, and of all. For integers.
template <unsigned Threads, class T>
__device__ Scanned<T> block_scan(T value) {
    using Shared = PerWarp<T, Threads>;
    GRADWIRE_SHARED(Shared, shared);
    const T inclusive = warp_inclusive_scan(value, Sum{});
    if (lane() == warp_threads - 1) shared.value[warp()] = inclusive;
    __syncthreads();
    T before = 0, total = 0;
    for (unsigned other = 0; other < Threads / warp_threads; ++other) {
        if (other == warp()) before = total;
        total += shared.value[other];
    }
    __syncthreads();
    return {static_cast<T>(before + inclusive - value), total};
}

}  // namespace gradwire
