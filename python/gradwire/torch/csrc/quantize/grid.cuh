// Stochastic rounding to levels of a uniform grid from zero to a scale, and back.
//
// A code is the level, and above it a one for values below zero.
#pragma once

#include "rng.cuh"
#include "quantize/coder.cuh"

namespace gradwire {

struct LevelGrid {
    float levels;   // the highest, at most 127
    unsigned sign;  // the bit that has the sign

    explicit __device__ LevelGrid(unsigned bits) : levels(static_cast<float>((1u << (bits - 1)) - 1)), sign(bits - 1) {}

    __device__ std::uint32_t code(float x, float scale, std::uint64_t key, std::uint32_t at) const {
        constexpr float far = 18446744073709551616.0f;  // 2^64, so that the factor is a normal number
        const float shift = scale < 1e-18f ? far : scale >= 1e18f ? 1.0f / far : 1.0f;
        const float factor = scale > 0.0f ? __fdiv_rn(levels, __fmul_rn(scale, shift)) : 0.0f;
        const float exact = min(__fmul_rn(__fmul_rn(magnitude_of(x), scale > 0.0f ? shift : 1.0f), factor), levels);
        const auto whole = static_cast<std::uint32_t>(static_cast<int>(exact));
        const bool up = key_chance(key, at, __fsub_rn(exact, static_cast<float>(whole)));
        const std::uint32_t level = whole + up;
        return level | static_cast<std::uint32_t>(x < 0.0f && level != 0) << sign;
    }

    __device__ float value(std::uint32_t code, float scale) const {
        const float step = __fdiv_rn(1.0f, levels);
        const float magnitude = __fmul_rn(scale, __fmul_rn(static_cast<float>(code & ((1u << sign) - 1)), step));
        return __uint_as_float(__float_as_uint(magnitude) | (code >> sign) << 31);
    }
};

// To the norm of a block: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
// NeurIPS 2017.
struct Uniform {
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t rank, float x) {
        return LevelGrid(coder.quantize.bits).code(x, *scales, coder.key, rank);
    }
    static __device__ float value(const Coder& coder, const float* scales, std::uint32_t code) {
        return LevelGrid(coder.quantize.bits).value(code, *scales);
    }
};

// To one magnitude: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
// NeurIPS 2017.
//
// A code is zero, one for plus, or two for minus: the three of a grid is two here.
struct Ternary {
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t rank, float x) {
        const std::uint32_t level = LevelGrid(2).code(x, *scales, coder.key, rank);
        return level - (level >> 1);
    }
    static __device__ float value(const Coder&, const float* scales, std::uint32_t code) {
        return LevelGrid(2).value(code + (code >> 1), *scales);
    }
};

}  // namespace gradwire
