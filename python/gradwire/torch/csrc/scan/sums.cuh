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

// One lane of the sum of logarithms, as a sum of exponents and a product of mantissas.
struct LogLane {
    std::int64_t exponent = 0;
    double product = 1.0;

    __device__ void add(float value) {
        // Every float32 but zero is a normal float64; a zero counts as one.
        take(value == 0.0f ? 1.0 : fabs(static_cast<double>(value)), false);
    }

    // Brings the product back into [1, 2): at the end of each tile.
    __device__ void normalize() { take(product, true); }

    __device__ double sum() const {
        return static_cast<double>(exponent) * 0.693147180559945309417232121458 + libm::log(product);
    }

  private:
    __device__ void take(double value, bool replace) {
        const std::uint64_t bits = libm::bits_of(value);
        exponent += static_cast<std::int64_t>(bits >> 52) - 1023;
        const double mantissa = libm::of_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
        product = replace ? mantissa : product * mantissa;
    }
};

}  // namespace gradwire
