// The sign of a value, which stands for one of two values.
#pragma once

#include "quantize/coder.cuh"

namespace gradwire {

// One magnitude for all entries: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
// Schemes", ICML 2019.
struct SignScale {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) { return x >= 0.0f; }
    static __device__ float value(const Coder&, const float* scales, std::uint32_t code) {
        return code ? *scales : -*scales;
    }
};

// The mean of a column's entries below zero, or of the others: Seide et al., "1-Bit Stochastic Gradient Descent and its
// Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.
struct TwoMeans {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) { return x >= 0.0f; }
    static __device__ float value(const Coder&, const float* scales, std::uint32_t code) { return scales[code]; }
};

}  // namespace gradwire
