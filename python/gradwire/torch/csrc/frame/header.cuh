// How long frames are, and the fixed part that each begins with: 48 bytes, little-endian.
#pragma once

#include "bucket/piece.h"
#include "pack/length.cuh"
#include "quantize/groups.cuh"

namespace gradwire {

constexpr std::uint64_t header_len = 48;

__host__ __device__ inline bool is_dense(const Piece& piece) { return piece.sparsify.kind == Sparsifier::all; }

// The longest frame of at most `count` entries of a piece, at whatever positions that its pattern
// allows.
__host__ __device__ inline std::uint64_t longest_frame(const Piece& piece, std::uint64_t count) {
    const std::uint64_t numel = piece.numel;
    const auto elements = static_cast<std::uint32_t>(numel);
    if (is_dense(piece)) return header_len + value_len(piece.quantize, elements, numel);
    const auto sections = [&](std::uint64_t entries) {
        return longest_positions(static_cast<IndexCoding>(piece.indices), piece.pattern, numel, entries) +
               value_len(piece.quantize, elements, entries);
    };
    // The full support takes no index bytes, so that the longest frame may have an entry less.
    const std::uint64_t most = numel > 0 ? numel - 1 : 0;
    if (count > numel) count = numel;
    const std::uint64_t all = sections(count), fewer = sections(count < most ? count : most);
    return header_len + (all > fewer ? all : fewer);
}

// Bytes that a frame has before the parts that grow with its entries.
__host__ __device__ inline std::uint64_t fixed_len(const Piece& piece) {
    return header_len + overhead(piece.quantize, static_cast<std::uint32_t>(piece.numel), 1);
}

// How the positions of a selection are coded, from what was measured.
__device__ inline Coded coded(const Piece& piece, const Selection& selection, const Measure& measure) {
    if (is_dense(piece)) return {Coding::none, 0, 0};
    const std::uint32_t last = selection.count > 0 ? selection.positions[selection.count - 1] : 0;
    return choose(static_cast<IndexCoding>(piece.indices), piece.pattern, measure, piece.numel, selection.count, last);
}

__device__ inline std::uint64_t frame_len(const Piece& piece, std::uint64_t count, const Coded& positions) {
    return header_len + positions.len + value_len(piece.quantize, static_cast<std::uint32_t>(piece.numel), count);
}

// The exact length of the frame of a selection, in every thread of the block.
template <unsigned Threads>
__device__ std::uint64_t frame_len(const Piece& piece, const Selection& selection) {
    Measure measure{};
    if (!is_dense(piece) && needs_measure(static_cast<IndexCoding>(piece.indices)))
        measure = measure_positions<Threads>(selection.positions, selection.count, piece.pattern, 0, selection.count);
    return frame_len(piece, selection.count, coded(piece, selection, measure));
}

constexpr unsigned header_words = header_len / 4, checksum_word = 3;

struct Header {
    Dtype dtype;
    Coded coded;
    int exponent;
    std::uint64_t count, value_len;
};

// A word of the header, with zero for the checksum.
__device__ inline std::uint32_t header_word(const Piece& piece, const Header& header, unsigned word) {
    constexpr std::uint32_t magic = 0x00465747, version = 1;
    const auto half = [word](std::uint64_t number) { return static_cast<std::uint32_t>(number >> (word % 2 * 32)); };
    switch (word) {
        case 0: return magic | version << 24;
        case 1:
            // No flags; dtype, sparsifier, quantizer.
            return static_cast<std::uint32_t>(header.dtype) << 8 |
                   (piece.named != 0 ? piece.named - 1 : static_cast<std::uint32_t>(piece.sparsify.kind)) << 16 |
                   static_cast<std::uint32_t>(piece.quantize.kind) << 24;
        case 2:
            return static_cast<std::uint32_t>(header.coded.coding) |
                   static_cast<std::uint32_t>(header.coded.low_bits) << 8 |
                   static_cast<std::uint32_t>(header.exponent) << 16;
        case 4:
        case 5: return half(piece.numel);
        case 6:
        case 7: return half(header.count);
        case 8:
        case 9: return half(header.coded.len);
        case 10:
        case 11: return half(header.value_len);
        default: return 0;
    }
}

}  // namespace gradwire
