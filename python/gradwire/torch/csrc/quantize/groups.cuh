// Which entries of a frame share scales, and how long its value section is.
#pragma once

#include "device/launch.cuh"
#include "bucket/piece.h"

namespace gradwire {

enum class Grouping : std::uint8_t {
    none,       // there are no scales
    whole,      // all entries of the frame
    ranks,      // so many entries in a row, whatever their positions
    positions,  // the entries at so many positions in a row, however many they are
};

struct Groups {
    Grouping by;
    std::uint32_t size;  // in ranks or positions
    std::uint32_t each;  // scales of a group
};

// Entries of a block that a writer makes, where no option says it.
constexpr std::uint32_t codebook_block = 4096, exponent_block = 2048;

__host__ __device__ inline Groups groups_of(const Quantize& quantize, std::uint32_t numel) {
    switch (quantize.kind) {
        case Quantizer::float8_e5m2:
        case Quantizer::float8_e4m3:
            if (quantize.block == 0) return {Grouping::none, 0, 0};
            return {Grouping::ranks, quantize.block, 1};
        case Quantizer::uniform: return {Grouping::ranks, quantize.block, 1};
        case Quantizer::sign_scale:
        case Quantizer::ternary: return {Grouping::whole, 0, 1};
        case Quantizer::two_means: {
            const std::uint32_t all = numel > 0 ? numel : 1;
            return {Grouping::positions, quantize.block > 0 ? quantize.block : all, 2};
        }
        case Quantizer::codebook: return {Grouping::ranks, codebook_block, 1u << (quantize.bits - 1)};
        case Quantizer::exponent: return {Grouping::ranks, exponent_block, 1};
        default: return {Grouping::none, 0, 0};
    }
}

// How many groups there are.
__host__ __device__ inline std::uint64_t number_of(Groups groups, std::uint64_t numel, std::uint64_t count) {
    switch (groups.by) {
        case Grouping::whole: return 1;
        case Grouping::ranks: return pieces(count, groups.size);
        case Grouping::positions: return pieces(numel, groups.size);
        default: return 0;
    }
}

// How many are summed up before there are tiles: one of all entries where there are no scales, for an exponent.
__host__ __device__ inline std::uint64_t summed_groups(Groups groups, std::uint64_t numel, std::uint64_t count) {
    return groups.by == Grouping::none ? 1 : number_of(groups, numel, count);
}

// Bits of a code.
__host__ __device__ inline unsigned code_bits(const Quantize& quantize) {
    switch (quantize.kind) {
        case Quantizer::float32: return 32;
        case Quantizer::bfloat16:
        case Quantizer::float16:
        case Quantizer::float16_scaled: return 16;
        case Quantizer::uniform:
        case Quantizer::codebook: return quantize.bits;
        case Quantizer::sign_scale:
        case Quantizer::two_means: return 1;
        case Quantizer::ternary: return 2;
        default: return 8;
    }
}

// The bytes that a value section begins with: parameters, before the scales.
struct Prologue {
    std::uint32_t words[2];
    std::uint32_t len;  // in bytes
};

__host__ __device__ inline Prologue prologue_of(const Quantize& quantize, std::uint32_t numel) {
    const Groups groups = groups_of(quantize, numel);
    switch (quantize.kind) {
        case Quantizer::float8_e5m2:
        case Quantizer::float8_e4m3:
        case Quantizer::two_means:
        case Quantizer::exponent: return {{groups.size, 0}, 4};
        case Quantizer::uniform:
        case Quantizer::codebook: return {{quantize.bits, groups.size}, 8};
        default: return {{0, 0}, 0};
    }
}

// Bytes of prologue and scales.
__host__ __device__ inline std::uint64_t overhead(const Quantize& quantize, std::uint32_t numel, std::uint64_t count) {
    const Groups groups = groups_of(quantize, numel);
    return prologue_of(quantize, numel).len + 4 * groups.each * number_of(groups, numel, count);
}

// Bytes of the value section of a frame of `count` entries out of `numel`.
__host__ __device__ inline std::uint64_t value_len(const Quantize& quantize, std::uint32_t numel, std::uint64_t count) {
    if (count == 0) return 0;
    return overhead(quantize, numel, count) + pieces(count * code_bits(quantize), 8);
}

}  // namespace gradwire
