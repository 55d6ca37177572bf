// Sums over a tensor, in the lanes and the tree of the core.
//
// A chunk has sixteen lanes in float64, entry i goes to lane i % 16, and entries are added one after
// the other; the lanes are added in a tree, and chunks in their order. Any other order would round
// differently, and thresholds, and so frames, would differ from the core's.
#pragma once

#include "fit/moments.h"
#include "scan/tensor.cuh"
#include "scan/team.cuh"

namespace gradwire {

constexpr std::uint64_t chunk_entries = 65536;  // whose sums are added up before they join others
constexpr unsigned tile_entries = 2048;         // between which products of mantissas are brought back
constexpr unsigned lanes_of_sums = 16;

// Adds sixteen lanes, those of either half of a warp, into the first of each.
__device__ inline double reduce_lanes(double value) {
    for (unsigned width = lanes_of_sums / 2; width > 0; width /= 2) {
        const double other = __shfl_down_sync(all_lanes, value, width);
        if (lane() % lanes_of_sums < width) value += other;
    }
    return value;
}

// One lane of the sums of exceedances; the lower half of a warp adds them, the upper half squares.
struct ExceedanceLane {
    double sum = 0.0;
    std::uint32_t count = 0;

    __device__ void add(float value, float location) {
        const float difference = fabsf(value) - location;
        const bool above = difference > 0.0f;
        const double excess = above ? static_cast<double>(difference) : 0.0;
        count += above;
        sum += lane() < lanes_of_sums ? excess : excess * excess;
    }
};

}  // namespace gradwire
