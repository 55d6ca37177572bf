// float32 to bfloat16, up or down by chance: rust/core/src/simd/dither.
#pragma once

#include "bucket/piece.h"
#include "rng.cuh"

namespace gradwire {

// The key of this step's rounding of what a memory in bfloat16 becomes: no stream is so high that these
// would be the numbers that a quantizer rounds by.
__device__ inline std::uint64_t memory_key(const Memory& memory, const State& state) {
    return make_key(memory.seed, state.tensor, state.step, ~state.stream ^ std::uint64_t{1} << 63);
}

// One of the two bfloat16 that a value lies between, the nearer one more often, so that the mean is the
// value. At most the largest that is finite; zero of what is not.
//
// Four entries share the bits of a random number: see the core.
__device__ inline std::uint16_t dithered(float value, std::uint64_t key, std::uint32_t position) {
    constexpr std::uint32_t sign = 0x80000000, infinite = 0x7f800000, largest = 0x7f7f0000;
    std::uint32_t bits = __float_as_uint(value);
    const std::uint32_t magnitude = bits & ~sign;
    if (magnitude >= infinite) return 0;
    if (magnitude > largest) bits = (bits & sign) | largest;
    const std::uint32_t draw = key_bits(key, position / 64 * 16 + position % 16);
    const std::uint32_t part = __funnelshift_r(draw, draw, position / 16 % 4 * 8) & 0xffff;
    return static_cast<std::uint16_t>((bits + part) >> 16);
}

}  // namespace gradwire
