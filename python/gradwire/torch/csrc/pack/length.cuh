// How long positions are in each coding, and which coding is the smallest that is allowed.
#pragma once

#include "device/block.cuh"
#include "bucket/piece.h"

namespace gradwire {

// The ids that the header of a frame has.
enum class Coding : std::uint8_t { none, elias_fano, rice, bitmap, chunk_local, seeded };

// How the positions of one frame are coded.
struct Coded {
    Coding coding;
    std::uint8_t low_bits;  // of Elias-Fano and Rice
    std::uint64_t len;      // of the section, in bytes
};

constexpr unsigned most_low_bits = 31;

__host__ __device__ inline unsigned log2_of(std::uint32_t x) {
    unsigned log = 0;
    while (x >>= 1) ++log;
    return log;
}

// The width with the fewest bits, the smaller one of two equals: one more low bit costs `count` bits
// and saves half of the zeros that the upper vector steps over.
__host__ __device__ inline Coded best_elias_fano(std::uint64_t numel, std::uint64_t count) {
    if (count == 0) return {Coding::elias_fano, 0, 0};
    unsigned width = 0;
    while (width < most_low_bits && (numel - 1) >> width > 2 * count) ++width;
    const std::uint64_t bits = count * width + count + ((numel - 1) >> width);
    return {Coding::elias_fano, static_cast<std::uint8_t>(width), pieces(bits, 8)};
}

// The best width of Rice is one of three from this one on, whatever the gaps are: see the core.
constexpr unsigned rice_widths = 3;
__host__ __device__ inline unsigned first_rice_width(std::uint32_t last, std::uint64_t count) {
    const std::uint64_t mean_gap = (static_cast<std::uint64_t>(last) + 1 - count) / count;
    const unsigned log = log2_of(mean_gap > 1 ? static_cast<std::uint32_t>(mean_gap) : 1);
    return min(log > 0 ? log - 1 : 0, most_low_bits - 2);
}

// What has to be read off the positions before a coding is chosen: zeros in the upper vector of each
// of the widths of Rice, and entries that are not in the chunk of their rank.
struct Measure {
    std::uint32_t zeros[rice_widths];
    std::uint32_t strays;

    __device__ void add(std::uint32_t gap, unsigned first) {
        gap >>= first;
        for (unsigned i = 0; i < rice_widths; ++i, gap >>= 1) zeros[i] += gap;
    }
    __device__ void add(const Measure& other) {
        for (unsigned i = 0; i < rice_widths; ++i) zeros[i] += other.zeros[i];
        strays += other.strays;
    }
};

__device__ inline Coded best_rice(const Measure& measure, std::uint32_t last, std::uint64_t count) {
    if (count == 0) return {Coding::rice, 0, 0};
    const unsigned first = first_rice_width(last, count);
    unsigned best = 0;
    std::uint64_t least = 0;
    for (unsigned i = 0; i < rice_widths; ++i) {
        const std::uint64_t bits = count * (first + i + 1) + measure.zeros[i];
        if (i == 0 || bits < least) best = i, least = bits;
    }
    return {Coding::rice, static_cast<std::uint8_t>(first + best), pieces(least, 8)};
}

// Bits of a position in its chunk.
__host__ __device__ inline unsigned chunk_width(std::uint32_t size) { return log2_of(size - 1) + 1; }

constexpr std::uint64_t chunk_prologue = 8, seeded_len = 9;

// Entries of a tensor with so many in each chunk.
__host__ __device__ inline std::uint64_t chunk_count(Pattern chunks, std::uint64_t numel) {
    const std::uint64_t rest = numel % chunks.size;
    return numel / chunks.size * chunks.k + (rest < chunks.k ? rest : chunks.k);
}

// The smallest coding that is allowed. Equal lengths go to the bitmap, then to Elias-Fano, to Rice,
// and to the pattern. `last` is the last position.
__device__ inline Coded choose(IndexCoding allowed, Pattern pattern, const Measure& measure, std::uint64_t numel,
                               std::uint64_t count, std::uint32_t last) {
    if (count == numel) return {Coding::none, 0, 0};
    const Coded bitmap{Coding::bitmap, 0, count == 0 ? 0 : pieces(numel, 8)};
    switch (allowed) {
        case IndexCoding::elias_fano: return best_elias_fano(numel, count);
        case IndexCoding::rice: return best_rice(measure, last, count);
        case IndexCoding::bitmap: return bitmap;
        default: break;
    }
    Coded best = bitmap;
    const auto consider = [&best](Coded other) {
        if (other.len < best.len) best = other;
    };
    consider(best_elias_fano(numel, count));
    consider(best_rice(measure, last, count));
    if (count == 0) return best;
    if (pattern.kind == PatternKind::chunks && measure.strays == 0 && count == chunk_count(pattern, numel)) {
        const std::uint64_t bits = count * chunk_width(pattern.size);
        consider({Coding::chunk_local, 0, chunk_prologue + pieces(bits, 8)});
    }
    if (pattern.kind == PatternKind::subset || pattern.kind == PatternKind::run)
        consider({Coding::seeded, 0, seeded_len});
    return best;
}

// The longest that `choose` can come out, over all supports of `count` positions.
__host__ __device__ inline std::uint64_t longest_positions(IndexCoding allowed, Pattern pattern, std::uint64_t numel,
                                                           std::uint64_t count) {
    if (count == 0 || count >= numel) return 0;
    const std::uint64_t bitmap = pieces(numel, 8);
    if (allowed == IndexCoding::bitmap) return bitmap;
    // Rice at the width of the best Elias-Fano is no longer than it.
    std::uint64_t longest = best_elias_fano(numel, count).len;
    if (allowed != IndexCoding::automatic) return longest;
    if (bitmap < longest) longest = bitmap;
    const bool drawn = pattern.kind == PatternKind::subset || pattern.kind == PatternKind::run;
    return drawn && seeded_len < longest ? seeded_len : longest;
}

// Whether `choose` looks at what is read off the positions.
__host__ __device__ inline bool needs_measure(IndexCoding allowed) {
    return allowed == IndexCoding::automatic || allowed == IndexCoding::rice;
}

// Positions skipped before entry `at`.
__device__ inline std::uint32_t gap_at(const std::uint32_t* positions, std::uint64_t at) {
    return at == 0 ? positions[0] : positions[at] - positions[at - 1] - 1;
}

// What entries `begin` to `end` of `count` come to, in every thread of the block.
template <unsigned Threads>
__device__ Measure measure_positions(const std::uint32_t* positions, std::uint64_t count, Pattern pattern,
                                     std::uint64_t begin, std::uint64_t end) {
    Measure sums{};
    const unsigned first = count > 0 ? first_rice_width(positions[count - 1], count) : 0;
    const bool chunks = pattern.kind == PatternKind::chunks;
    for (std::uint64_t at = begin + threadIdx.x; at < end; at += Threads) {
        sums.add(gap_at(positions, at), first);
        if (chunks) sums.strays += positions[at] / pattern.size != at / pattern.k;
    }
    for (unsigned i = 0; i < rice_widths; ++i) sums.zeros[i] = block_reduce<Threads>(sums.zeros[i], Sum{});
    if (chunks) sums.strays = block_reduce<Threads>(sums.strays, Sum{});
    return sums;
}

}  // namespace gradwire
