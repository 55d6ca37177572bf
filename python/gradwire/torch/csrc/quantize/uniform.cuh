// A sign and a level of a uniform grid from zero to the norm of a block, stochastically rounded.
//
// Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.
#pragma once

#include "quantize/grid.cuh"

namespace gradwire {

struct Uniform {
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t rank, float x) {
        return LevelGrid(coder.quantize.bits).code(x, *scales, coder.key, rank);
    }
    static __device__ float value(const Coder& coder, const float* scales, std::uint32_t code) {
        return LevelGrid(coder.quantize.bits).value(code, *scales);
    }
};

}  // namespace gradwire
