// Scales that are powers of two: products by them are exact.
#pragma once

#include "quantize/coder.cuh"

namespace gradwire::power {

// Exponent and significand, in [1, 2), of a magnitude that is finite and not zero.
struct Split {
    int exponent;
    double significand;
};

__device__ inline Split split(float magnitude) {
    // Every float32 is a normal float64.
    const auto bits = static_cast<unsigned long long>(__double_as_longlong(magnitude));
    const unsigned long long fraction = bits & ((1ull << 52) - 1);
    const double significand = __longlong_as_double(static_cast<long long>(fraction | 1023ull << 52));
    return {static_cast<int>(bits >> 52 & 0x7ff) - 1023, significand};
}

// Two to a small exponent.
__device__ inline double wide(int exponent) {
    return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

// Two to this exponent, or to the nearest one from that of the smallest float32 to `highest`.
__device__ inline float of(int exponent, int highest) {
    return __double2float_rn(wide(min(max(exponent, -149), highest)));
}

struct Factors {
    float first, second;
};

// Two factors whose product is one over a power of two: that of the smallest is no float32. For a
// scale of zero that product is zero.
__device__ inline Factors inverse(float scale) {
    const std::uint32_t bits = __float_as_uint(scale);
    if (bits >= 1u << 23 && bits < 254u << 23) return {__uint_as_float((254u << 23) - bits), 1.0f};
    if (scale == 0.0f) return {0.0f, 1.0f};
    const int exponent = -split(scale).exponent;
    const int first = min(max(exponent, -127), 127);
    return {__double2float_rn(wide(first)), __double2float_rn(wide(exponent - first))};
}

}  // namespace gradwire::power
