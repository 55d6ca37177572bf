// The sign, and one magnitude for all entries.
//
// Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
#pragma once

#include "quantize/coder.cuh"

namespace gradwire {

struct SignScale {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) { return x >= 0.0f; }
    static __device__ float value(const Coder&, const float* scales, std::uint32_t code) {
        return code ? *scales : -*scales;
    }
};

}  // namespace gradwire
