// Minus, zero or plus one magnitude, stochastically rounded.
//
// Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS 2017.
#pragma once

#include "quantize/grid.cuh"

namespace gradwire {

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
