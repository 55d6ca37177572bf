// 8-bit floats with one power of two per block of entries.
//
// Micikevicius et al., "FP8 Formats for Deep Learning", 2022, in the formats of the Open Compute
// Project. What exceeds the largest finite code becomes that code.
#pragma once

#include "rng.cuh"
#include "quantize/power.cuh"

namespace gradwire {

// How the seven bits beside the sign are read.
template <unsigned Mantissa, unsigned Bias, unsigned Largest>
struct Float8Format {
    static constexpr std::uint32_t largest = Largest;                        // finite code
    static constexpr std::uint32_t shift = 23 - Mantissa;                    // bits there is no room for
    static constexpr std::uint32_t smallest_normal = (128 - Bias) << 23;     // as a float32
    static constexpr std::uint32_t excess = (127 - Bias) << Mantissa;        // of an exponent field of float32
    static constexpr std::uint32_t anchor = (128 - Bias + shift) << 23;      // its last bit is a subnormal step
    static constexpr std::uint32_t normal = 1u << Mantissa;                  // the first code that is one
    static constexpr unsigned fraction = 28;                                 // bits of a step that a draw decides
    static constexpr std::uint32_t steps = (126 + Bias + Mantissa + fraction) << 23;  // of which one is a step
    static constexpr int top = static_cast<int>(Largest >> Mantissa) - static_cast<int>(Bias);  // exponent of largest
};
using E5M2 = Float8Format<2, 15, 0x7b>;
using E4M3 = Float8Format<3, 7, 0x7e>;

namespace float8 {

template <class Format>
__device__ std::uint32_t nearest(float x) {
    const std::uint32_t bits = __float_as_uint(x), magnitude = bits & magnitude_bits;
    std::uint32_t code;
    if (magnitude < Format::smallest_normal) {
        const float sum = __fadd_rn(__uint_as_float(magnitude), __uint_as_float(Format::anchor));
        code = __float_as_uint(sum) - Format::anchor;
    } else {
        const std::uint32_t half = (1u << (Format::shift - 1)) - 1 + (magnitude >> Format::shift & 1);
        code = ((magnitude + half) >> Format::shift) - Format::excess;
    }
    return min(code, Format::largest) | (bits >> 24 & 0x80);
}

// One of the two neighbours, so that the mean is the value.
template <class Format>
__device__ std::uint32_t by_chance(float x, std::uint64_t key, std::uint32_t at) {
    const std::uint32_t bits = __float_as_uint(x), magnitude = bits & magnitude_bits, draw = key_bits(key, at);
    const std::uint32_t sign = bits >> 24 & 0x80;
    if (magnitude >= Format::smallest_normal) {
        const std::uint32_t code = ((magnitude + (draw >> (32 - Format::shift))) >> Format::shift) - Format::excess;
        return min(code, Format::largest) | sign;
    }
    const float exact = __fmul_rn(__uint_as_float(magnitude), __uint_as_float(Format::steps));
    const std::uint32_t sum = static_cast<std::uint32_t>(exact) + (draw >> (32 - Format::fraction));
    const std::uint32_t code = min(sum >> Format::fraction, Format::largest) | sign;
    // Where the draw has come as far as it can, what a part leaves out decides. A magnitude with a
    // fraction of a part is below 2^24 of them, and so below a whole step.
    const bool open = sum << (32 - Format::fraction) == 0xfffffff0u && exact < 16777216.0f;
    return code + (open && key_chance(key_further(key), at, __fsub_rn(exact, truncf(exact))));
}

template <class Format>
__device__ float widen(std::uint32_t code) {
    const std::uint32_t magnitude = code & 0x7f;
    const float subnormal =
        __fsub_rn(__uint_as_float(Format::anchor | magnitude), __uint_as_float(Format::anchor));
    const std::uint32_t normal = (magnitude + Format::excess) << Format::shift;
    return __uint_as_float((magnitude < Format::normal ? __float_as_uint(subnormal) : normal) | (code & 0x80) << 24);
}

// The smallest power of two that brings a magnitude of `peak` into the range of the codes; zero for a
// block of zeros. The largest codes reach 1.75 times 2^127 at most.
template <class Format>
__device__ float scale_for(float peak) {
    if (peak == 0.0f) return 0.0f;
    const power::Split parts = power::split(peak);
    return power::of(parts.exponent - Format::top + (parts.significand <= 1.75 ? 0 : 1), 127 - Format::top);
}

}  // namespace float8

template <class Format>
struct Float8 {
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t rank, float x) {
        const power::Factors factors = coder.quantize.block ? power::inverse(*scales) : power::Factors{1.0f, 1.0f};
        const float scaled = __fmul_rn(__fmul_rn(x, factors.first), factors.second);
        return coder.quantize.stochastic ? float8::by_chance<Format>(scaled, coder.key, rank)
                                         : float8::nearest<Format>(scaled);
    }
    static __device__ float value(const Coder& coder, const float* scales, std::uint32_t code) {
        const float scale = coder.quantize.block ? *scales : 1.0f;
        return __fmul_rn(float8::widen<Format>(code), scale);
    }
};

}  // namespace gradwire
