// What the 32 threads of a warp do together. All of them must call; blocks are whole warps.
#pragma once

#include "launch.cuh"

namespace gradwire {

constexpr unsigned warp_threads = 32;
constexpr unsigned all_lanes = 0xffffffffu;

__device__ inline unsigned lane() { return threadIdx.x % warp_threads; }
__device__ inline unsigned warp() { return threadIdx.x / warp_threads; }

// The lanes below this one, as a mask.
__device__ inline unsigned lanes_below() { return (1u << lane()) - 1; }

struct Sum {
    template <class T>
    __device__ T operator()(T a, T b) const {
        return a + b;
    }
};
struct Least {
    template <class T>
    __device__ T operator()(T a, T b) const {
        return b < a ? b : a;
    }
};
struct Greatest {
    template <class T>
    __device__ T operator()(T a, T b) const {
        return a < b ? b : a;
    }
};

// All values of the warp combined, in every lane. The tree is fixed: halves of 16, 8, 4, 2 and 1 lanes.
// Each pair is combined in the same order in both of its lanes, so all lanes get the same bits.
template <class T, class Combine>
__device__ T warp_reduce(T value, Combine combine) {
    for (unsigned half = 16; half > 0; half /= 2) {
        const T other = __shfl_xor_sync(all_lanes, value, static_cast<int>(half));
        value = lane() & half ? combine(other, value) : combine(value, other);
    }
    return value;
}

// The values of this lane and those before it combined.
template <class T, class Combine>
__device__ T warp_inclusive_scan(T value, Combine combine) {
    for (unsigned by = 1; by < warp_threads; by *= 2) {
        const T other = __shfl_up_sync(all_lanes, value, by);
        if (lane() >= by) value = combine(other, value);
    }
    return value;
}

}  // namespace gradwire
