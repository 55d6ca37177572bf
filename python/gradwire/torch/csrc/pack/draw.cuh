// Positions that are drawn from a key, by a writer or by a reader.
#pragma once

#include "device/launch.cuh"
#include "rng.cuh"

namespace gradwire {

constexpr std::uint32_t no_position = 0xffffffff;

// The position below `numel` that a word of a key stands for, or none: Lemire, "Fast Random Integer
// Generation in an Interval", ACM Trans. Model. Comput. Simul. 2019.
__device__ inline std::uint32_t drawn_position(std::uint64_t key, std::uint32_t at, std::uint32_t numel) {
    const std::uint64_t product = static_cast<std::uint64_t>(key_bits(key, at)) * numel;
    const auto low = static_cast<std::uint32_t>(product);
    const bool taken = low >= numel || low >= (0u - numel) % numel;
    return taken ? static_cast<std::uint32_t>(product >> 32) : no_position;
}

// The first position that is drawn.
__device__ inline std::uint32_t first_drawn(std::uint64_t key, std::uint32_t numel) {
    for (std::uint32_t at = 0;; ++at) {
        const std::uint32_t position = drawn_position(key, at, numel);
        if (position != no_position) return position;
    }
}

// Marks the positions of words `first`, `first + step`, … below `count` from word `at` on. How many had
// no mark.
__device__ inline std::uint32_t mark_drawn(std::uint32_t* marks, std::uint64_t key, std::uint32_t numel, std::uint32_t at,
                                           std::uint64_t first, std::uint64_t step, std::uint64_t count) {
    std::uint32_t fresh = 0;
    for (std::uint64_t i = first; i < count; i += step) {
        const std::uint32_t position = drawn_position(key, at + static_cast<std::uint32_t>(i), numel);
        if (position == no_position) continue;
        const std::uint32_t bit = 1u << (position % 32);
        fresh += (atomicOr(marks + position / 32, bit) & bit) == 0;
    }
    return fresh;
}

}  // namespace gradwire
