// Numbers of float32 as they are, as bfloat16, or as IEEE binary16 after an exact multiplication by a power of two.
#pragma once

#include "quantize/power.cuh"

namespace gradwire {

// 32 bits, exact.
struct Float32 {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) {
        return __float_as_uint(x);
    }
    static __device__ float value(const Coder&, const float*, std::uint32_t code) { return __uint_as_float(code); }
};

// The upper half of a float32, rounded to nearest even, at most the largest finite value.
struct BFloat16 {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) {
        constexpr std::uint32_t largest = 0x7f7f;
        const std::uint32_t bits = __float_as_uint(x), magnitude = bits & magnitude_bits;
        // Adding just under half carries into the kept bits exactly where rounding goes up; the lowest
        // kept bit decides ties.
        const std::uint32_t rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
        return min(rounded, largest) | (bits >> 16 & 0x8000);
    }
    static __device__ float value(const Coder&, const float*, std::uint32_t code) {
        return __uint_as_float(code << 16);
    }
};

namespace half {

// The nearest binary16, ties to even, of a magnitude up to 65504.
__device__ inline std::uint32_t narrow(float x) {
    const std::uint32_t bits = __float_as_uint(x), magnitude = bits & magnitude_bits, sign = bits >> 16 & 0x8000;
    if (magnitude >= 113u << 23) {
        const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return (rounded - (112u << 23)) >> 13 | sign;
    }
    // Below the smallest normal: where the last bit of a sum is worth one step, it is rounded to steps.
    constexpr std::uint32_t anchor = 126u << 23;  // a half, whose last bit is 2^-24
    const float sum = __fadd_rn(__uint_as_float(magnitude), __uint_as_float(anchor));
    return (__float_as_uint(sum) - anchor) | sign;
}

// The value of a finite binary16.
__device__ inline float widen(std::uint32_t code) {
    const std::uint32_t magnitude = code & 0x7fff, sign = (code & 0x8000) << 16;
    if (magnitude >= 1u << 10) return __uint_as_float((magnitude + (112u << 10)) << 13 | sign);
    constexpr std::uint32_t anchor = 126u << 23;
    const float subnormal = __fsub_rn(__uint_as_float(anchor | magnitude), __uint_as_float(anchor));
    return __uint_as_float(__float_as_uint(subnormal) | sign);
}

// `x * 2^exponent`, rounded once: in float64 the product is exact.
__device__ inline float scale(float x, int exponent) {
    return __double2float_rn(__dmul_rn(static_cast<double>(x), power::wide(exponent)));
}

// The largest exponent for which no magnitude up to `peak`, times two to it, exceeds 65504; at least
// -112, where the codes already reach the largest float32. Zero if all values are zero.
__device__ inline int exponent_for(float peak) {
    const std::uint32_t bits = __float_as_uint(peak);
    if (bits == 0) return 0;
    const int shift = max(__clz(static_cast<int>(bits)) - 8, 0);
    const bool subnormal = bits >> 23 == 0;
    const std::uint32_t significand = subnormal ? bits << shift : (bits & 0x7fffff) | 0x800000;
    const int exponent = subnormal ? -126 - shift : static_cast<int>(bits >> 23) - 127;
    // 65504 = 0xFFE000 * 2^(15 - 23)
    return max((significand <= 0xffe000 ? 15 : 14) - exponent, -112);
}

}  // namespace half

struct Float16 {
    static __device__ std::uint32_t code(const Coder& coder, const float*, std::uint32_t, float x) {
        constexpr float largest = 65504.0f;
        const float scaled = half::scale(x, coder.exponent);
        return half::narrow(min(max(scaled, -largest), largest));
    }
    static __device__ float value(const Coder& coder, const float*, std::uint32_t code) {
        return half::scale(half::widen(code), -coder.exponent);
    }
};

}  // namespace gradwire
