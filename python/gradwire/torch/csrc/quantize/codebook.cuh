// A sign and one of a few magnitudes, fitted to the values of each block (see codebook_fit.cuh).
#pragma once

#include "quantize/coder.cuh"

namespace gradwire {

struct Codebook {
    // Which magnitude is nearest in the lower bits (the lower of two), the sign in the highest.
    static __device__ std::uint32_t code(const Coder& coder, const float* scales, std::uint32_t, float x) {
        const unsigned sign = coder.quantize.bits - 1, magnitudes = 1u << sign;
        std::uint32_t level = 0;
        for (unsigned i = 0; i + 1 < magnitudes; ++i) {
            // Halved first: a sum could overflow.
            const float middle = __fadd_rn(__fmul_rn(0.5f, scales[i]), __fmul_rn(0.5f, scales[i + 1]));
            level += magnitude_of(x) > middle;
        }
        return level | static_cast<std::uint32_t>(x < 0.0f) << sign;
    }
    static __device__ float value(const Coder& coder, const float* scales, std::uint32_t code) {
        const unsigned sign = coder.quantize.bits - 1;
        return __uint_as_float(__float_as_uint(scales[code & ((1u << sign) - 1)]) ^ (code >> sign) << 31);
    }
};

}  // namespace gradwire
