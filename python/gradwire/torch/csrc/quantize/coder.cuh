// What the codes of a frame depend on besides a value and the scales of its group.
//
// Each quantizer is a struct of two functions: `code` makes the code of a value, and
// `value` what a reader makes of the code. `scales` are those of the entry's group.
#pragma once

#include "device/launch.cuh"
#include "bucket/piece.h"

namespace gradwire {

struct Coder {
    Quantize quantize;
    int exponent;        // of float16_scaled: values are multiplied by two to this power
    std::uint64_t key;   // of the frame's random numbers
};

constexpr std::uint32_t magnitude_bits = 0x7fffffff, sign_bit = 0x80000000;

__device__ inline float magnitude_of(float x) { return __uint_as_float(__float_as_uint(x) & magnitude_bits); }

}  // namespace gradwire
