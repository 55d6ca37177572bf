// bfloat16: the upper half of a float32, rounded to nearest even, at most the largest finite value.
#pragma once

#include "quantize/coder.cuh"

namespace gradwire {

struct BFloat16 {
    static __device__ std::uint32_t code(const Coder&, const float*, std::uint32_t, float x) {
        constexpr std::uint32_t largest = 0x7f7f;
        const std::uint32_t bits = __float_as_uint(x), magnitude = bits & magnitude_bits;
        // Adding just under half carries into the kept bits exactly where rounding goes up; the lowest
        // kept bit decides ties.
        const std::uint32_t rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
        return min(rounded, largest) | (bits >> 16 & 0x8000);
    }
    static __device__ float value(const Coder&, const float*, std::uint32_t code) {
        return __uint_as_float(code << 16);
    }
};

}  // namespace gradwire
