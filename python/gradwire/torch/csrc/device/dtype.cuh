// Writes a float32 as an element of another type.
#pragma once

#include "device/launch.cuh"

namespace gradwire {

// The nearest binary16, ties to even; infinite above the largest, and a NaN stays one.
__device__ inline std::uint16_t to_half(float x) {
    const std::uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65520 rounds up
    if (magnitude >= 113u << 23) {
        const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return static_cast<std::uint16_t>((rounded - (112u << 23)) >> 13 | sign);
    }
    // Where the last bit of a sum is worth one step, it is rounded to steps.
    constexpr std::uint32_t anchor = 126u << 23;
    const float sum = __fadd_rn(__uint_as_float(magnitude), __uint_as_float(anchor));
    return static_cast<std::uint16_t>((__float_as_uint(sum) - anchor) | sign);
}

// The nearest bfloat16, ties to even; a NaN stays one.
__device__ inline std::uint16_t to_bfloat16(float x) {
    const std::uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace gradwire
