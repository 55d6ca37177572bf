// A sign and a randomly rounded power of two.
//
// Horváth et al., "Natural Compression for Distributed Deep Learning", MSML 2022, definition 1.
#pragma once

#include "rng.cuh"
#include "quantize/power.cuh"

namespace gradwire {

struct Exponent {
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t rank, float x) {
        const float factor = *scales > 0.0f ? __fdiv_rn(1.0f, *scales) : 0.0f;
        const std::uint32_t bits = __float_as_uint(__fmul_rn(x, factor));
        const std::uint32_t exponent = ((bits & magnitude_bits) + (key_bits(coder.key, rank) >> 9)) >> 23;
        return min(exponent, 0x7fu) | (bits >> 24 & 0x80);
    }
    static __device__ float value(const Coder&, const float* scales, std::uint32_t code) {
        return __fmul_rn(__uint_as_float((code & 0x7f) << 23 | (code & 0x80) << 24), *scales);
    }

    // The first power of two that is not below the largest magnitude, at most 2^127; zero for zeros.
    static __device__ float scale_for(float peak) {
        if (peak == 0.0f) return 0.0f;
        const power::Split parts = power::split(peak);
        return power::of(max(parts.exponent + (parts.significand > 1.0 ? 1 : 0), -126), 127);
    }
};

}  // namespace gradwire
