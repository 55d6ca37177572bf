// How memories put a gradient together with what was kept, entry by entry: the formulas and the
// roundings of rust/core/src/memory, and of rust/core/src/simd/dither.
#pragma once

#include "bucket/piece.h"
#include "fit/libm.cuh"
#include "rng.cuh"

namespace gradwire {

// A fraction of the gradient joins a momentum, which joins the velocity (Lin et al., 2018).
struct MomentumRule {
    float momentum, scale;
    std::uint32_t nesterov;
};

// A step of Adam without its first moment (Kingma and Ba, 2015).
struct AdamRule {
    float keep, take, correction, eps, least, rate;
};

// What is new in a sum, and what a moment becomes.
struct Terms {
    float fresh, moment;
};

// What is kept of a number: of those below the smallest normal one a positive zero.
__device__ inline float normal_or_zero(float value) { return fabsf(value) < 1.17549435e-38f ? 0.0f : value; }

__device__ inline Terms momentum_terms(const MomentumRule& rule, float gradient, float momentum) {
    gradient = rule.scale * gradient;
    if (rule.nesterov) {
        const float next = normal_or_zero(rule.momentum * (gradient + momentum));
        return {gradient + next, next};
    }
    const float next = normal_or_zero(gradient + rule.momentum * momentum);
    return {next, next};
}

__device__ inline Terms adam_terms(const AdamRule& rule, float gradient, float second) {
    constexpr float most = 3.40282347e+38f;
    const float square = (rule.take * gradient) * gradient;
    float next = rule.keep * second + square;
    // In this order what is not a number stays so.
    next = normal_or_zero(most < next ? most : next);
    const float made = rule.correction * sqrtf(next) + rule.eps, least = fabsf(rule.least * gradient);
    const float root = made < least ? least : made;
    return {rule.rate * (gradient / root), next};
}

// Of the step that a state takes next.
__device__ inline AdamRule adam_rule(const Memory& memory, const State& state) {
    const double unseen = libm::pow(memory.beta2, static_cast<double>(state.moment_steps) + 1.0);
    // A step whose second moment is in range comes to its bound but for some roundings.
    constexpr double slack = 1.0 / (1 << 20);
    const double least = sqrt((1.0 - memory.beta2) / (1.0 - unseen)) * (1.0 - slack);
    return {static_cast<float>(memory.beta2), static_cast<float>(1.0 - memory.beta2),
            static_cast<float>(1.0 / sqrt(1.0 - unseen)), static_cast<float>(memory.eps),
            static_cast<float>(least), static_cast<float>(state.rate)};
}

// Whether the memory becomes the sums of gradient and memory where nothing is sent.
__host__ __device__ inline bool becomes_sums(MemoryKind kind) {
    return kind == MemoryKind::residual || kind == MemoryKind::momentum || kind == MemoryKind::adam;
}

// Whether it keeps something beside the residual.
__host__ __device__ constexpr bool has_moment(MemoryKind kind) {
    return kind == MemoryKind::momentum || kind == MemoryKind::adam;
}

// What a low-pass filter keeps of an entry, if it was `kept` and `left` of the sum was not sent
// (Chen et al., 2020).
__device__ inline float filtered(float beta, float kept, float left) {
    // By the general rule a negative zero would become a positive one.
    return beta == 1.0f ? left : normal_or_zero((1.0f - beta) * kept + beta * left);
}

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
