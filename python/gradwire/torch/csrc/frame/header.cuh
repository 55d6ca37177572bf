// The fixed part of a frame: 48 bytes, little-endian.
#pragma once

#include "frame/length.cuh"

namespace gradwire {

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
