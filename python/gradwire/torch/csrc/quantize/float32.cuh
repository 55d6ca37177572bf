// 32 bits, exact.
#pragma once

#include "quantize/coder.cuh"

namespace gradwire {

struct Float32 {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) {
        return __float_as_uint(x);
    }
    static __device__ float value(const Coder&, const float*, std::uint32_t code) { return __uint_as_float(code); }
};

}  // namespace gradwire
