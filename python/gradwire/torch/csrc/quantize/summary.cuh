// Sums over the values of a group, which its scales follow from.
//
// Sums are float64 over sixteen lanes, value `i` in lane `i % 16`, reduced in one fixed order; those of
// more than a chunk of values are the sums of its chunks, in order.
#pragma once

#include "device/warp.cuh"
#include "quantize/coder.cuh"

namespace gradwire {

constexpr unsigned sum_lanes = 16;
constexpr std::uint32_t chunk_values = 65536;

struct Summary {
    double above, below, squares;  // of what is not below zero, of what is, of all squares
    std::uint64_t count, negatives;
    std::uint32_t peak;  // bits of the largest magnitude

    __device__ void add(const Summary& next) {
        above = __dadd_rn(above, next.above);
        below = __dadd_rn(below, next.below);
        squares = __dadd_rn(squares, next.squares);
        count += next.count;
        negatives += next.negatives;
        peak = max(peak, next.peak);
    }
};

// What has to be gathered for the scales of a group.
enum class Basis : std::uint8_t { none, peak, sides, squares, sums, values };

__host__ __device__ inline bool has_sides(Basis basis) { return basis == Basis::sides || basis == Basis::sums; }
__host__ __device__ inline bool has_squares(Basis basis) { return basis == Basis::squares || basis == Basis::sums; }

// The running sums of one lane.
struct Lane {
    double above = 0.0, below = 0.0, squares = 0.0;
    std::uint32_t negatives = 0, peak = 0;

    __device__ void add(float x, bool sides, bool squared) {
        const double wide = x;
        const bool is_below = x < 0.0f;
        if (sides) {
            above = __dadd_rn(above, is_below ? 0.0 : wide);
            below = __dadd_rn(below, is_below ? wide : 0.0);
            negatives += is_below;
        }
        if (squared) squares = __dadd_rn(squares, __dmul_rn(wide, wide));
        peak = max(peak, __float_as_uint(x) & magnitude_bits);
    }
};

// The lanes of a half of a warp together; the summary is in the first of them. All threads of the
// warp call.
__device__ inline Summary reduce_lanes(Lane lane, std::uint64_t count) {
    for (unsigned width = sum_lanes / 2; width > 0; width /= 2) {
        lane.above = __dadd_rn(lane.above, __shfl_down_sync(all_lanes, lane.above, width, sum_lanes));
        lane.below = __dadd_rn(lane.below, __shfl_down_sync(all_lanes, lane.below, width, sum_lanes));
        lane.squares = __dadd_rn(lane.squares, __shfl_down_sync(all_lanes, lane.squares, width, sum_lanes));
        lane.negatives += __shfl_down_sync(all_lanes, lane.negatives, width, sum_lanes);
        lane.peak = max(lane.peak, __shfl_down_sync(all_lanes, lane.peak, width, sum_lanes));
    }
    return {lane.above, lane.below, lane.squares, count, lane.negatives, lane.peak};
}

}  // namespace gradwire
