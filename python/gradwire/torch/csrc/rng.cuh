// Random numbers without a state: each is a function of a key and a position, as the core draws them.
#pragma once

#include <cstdint>

namespace gradwire {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15u;

__host__ __device__ inline std::uint64_t scramble(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

// The key of a tensor's numbers in one step.
__host__ __device__ inline std::uint64_t make_key(std::uint64_t seed, std::uint64_t tensor,
                                                  std::uint64_t step, std::uint64_t stream) {
    std::uint64_t key = scramble(seed);
    key = scramble(key ^ scramble(tensor + golden));
    key = scramble(key ^ scramble(step + golden));
    return scramble(key ^ scramble(stream + golden));
}

// The random number of a key at a position: 32 uniform bits.
__host__ __device__ inline std::uint32_t key_bits(std::uint64_t key, std::uint32_t position) {
    auto finalize = [](std::uint32_t x) {
        x = (x ^ (x >> 16)) * 0x21F0AAADu;
        x = (x ^ (x >> 15)) * 0x735A2D97u;
        return x ^ (x >> 15);
    };
    const auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
    return finalize(finalize(position + low) + high);
}

// The key of the numbers that decide what those of this one leave open.
__host__ __device__ inline std::uint64_t key_further(std::uint64_t key) {
    return scramble(key + golden);
}

// True with this probability, in [0, 1], to its last bit. A number is a multiple of 2^-24: what is within its
// cell it leaves open, and numbers of further keys at the same position decide.
__host__ __device__ inline bool key_chance(std::uint64_t key, std::uint32_t position, float probability) {
    constexpr float cell = 1.0f / 16777216.0f;
    for (;;) {
        const float unit = static_cast<float>(key_bits(key, position) >> 8) * cell;
        if (!(unit < probability && probability < unit + cell)) return unit < probability;
        probability = (probability - unit) / cell;
        key = key_further(key);
    }
}

}  // namespace gradwire
