// Bit streams, least significant bit first, read at any place.
#pragma once

#include "device/launch.cuh"

namespace gradwire {

// A run of bytes, of which no more is read than there is: what is after the end reads as zero.
struct Bytes {
    const std::uint8_t* at = nullptr;
    std::uint64_t len = 0;

    __device__ std::uint32_t byte(std::uint64_t offset) const { return offset < len ? at[offset] : 0; }

    // Four bytes from this one on.
    __device__ std::uint32_t word(std::uint64_t offset) const {
        const auto address = reinterpret_cast<std::uintptr_t>(at + offset);
        const unsigned off = address & 3;
        if (off == 0 && offset + 4 <= len) return *reinterpret_cast<const std::uint32_t*>(address);
        if (offset >= off && offset + 8 <= len) {
            const auto* aligned = reinterpret_cast<const std::uint32_t*>(address - off);
            return __funnelshift_r(aligned[0], aligned[1], 8 * off);
        }
        std::uint32_t word = 0;
        for (unsigned i = 0; i < 4; ++i) word |= byte(offset + i) << (8 * i);
        return word;
    }

    // 32 bits from this one on.
    __device__ std::uint32_t bits(std::uint64_t bit) const {
        const unsigned off = bit & 7;
        const std::uint32_t low = word(bit >> 3);
        return off == 0 ? low : __funnelshift_r(low, byte((bit >> 3) + 4), off);
    }

    // One of the fields of `width` bits, 0 to 32, that the stream begins with.
    __device__ std::uint32_t field(std::uint64_t index, unsigned width) const {
        if (width == 0) return 0;
        return bits(index * width) & (~0u >> (32 - width));
    }

    __device__ Bytes from(std::uint64_t offset) const {
        return offset < len ? Bytes{at + offset, len - offset} : Bytes{at, 0};
    }

    __device__ Bytes first(std::uint64_t count) const { return {at, count < len ? count : len}; }
};

}  // namespace gradwire
