// A code of a few bits on a grid whose step and base, both binary16, are those of a block.
//
// Both are in one scale: the step in its lower half. See affine_fit.cuh for where the grids lie.
#pragma once

#include "rng.cuh"
#include "quantize/float16.cuh"

namespace gradwire {

namespace affine {

constexpr int least_exponent = -103, most_exponent = 126;

struct Cells {
    float step, base;
};

__device__ inline Cells cells_of(float scale) {
    const std::uint32_t word = __float_as_uint(scale);
    return {half::widen(word & 0xffff), half::widen(word >> 16)};
}

__device__ inline float scale_of(Cells cells) {
    return __uint_as_float(half::narrow(cells.step) | half::narrow(cells.base) << 16);
}

// The highest code.
__device__ inline float highest(unsigned bits) { return static_cast<float>((1u << bits) - 1); }

__device__ inline float inverse(float step) { return step > 0.0f ? __fdiv_rn(1.0f, step) : 0.0f; }

// From zero to the highest code, whatever the place is.
__device__ inline float inside(float place, float most) {
    const float positive = place > 0.0f ? place : 0.0f;
    return positive < most ? positive : most;
}

// Adding this rounds a number from 0 to 255 to a whole one, ties to even, into the lowest bits.
constexpr float whole = 8388608.0f;

// A step or a base may be twice the largest magnitude: one less than what just fits.
__device__ inline int exponent_for(float peak) {
    if (peak == 0.0f) return 0;
    return min(max(half::exponent_for(peak) - 1, least_exponent), most_exponent);
}

}  // namespace affine

struct Affine {
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t rank, float x) {
        const affine::Cells cells = affine::cells_of(*scales);
        const float scaled = __fmul_rn(x, power::of(coder.exponent, 127));
        const float place = affine::inside(__fmul_rn(__fsub_rn(scaled, cells.base), affine::inverse(cells.step)),
                                           affine::highest(coder.quantize.bits));
        if (!coder.quantize.stochastic) return __float_as_uint(__fadd_rn(place, affine::whole)) & 0xff;
        const auto below = static_cast<std::uint32_t>(static_cast<int>(place));
        return below + key_chance(coder.key, rank, __fsub_rn(place, static_cast<float>(below)));
    }
    static __device__ float value(const Coder& coder, const float* scales, std::uint32_t code) {
        const affine::Cells cells = affine::cells_of(*scales);
        const float unit = power::of(-coder.exponent, 127);
        return __fadd_rn(__fmul_rn(cells.base, unit), __fmul_rn(__fmul_rn(cells.step, unit), static_cast<float>(code)));
    }
};

}  // namespace gradwire
