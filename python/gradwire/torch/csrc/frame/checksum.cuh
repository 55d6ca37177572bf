// CRC-32C, in parts: of the bytes of a frame but for the four of the checksum itself.
//
// A checksum is a remainder of polynomials, and so it is linear: that of a message is the sum of those
// of its parts, each times x to the number of bits behind it. Bytes are counted from the end, so that
// all parts but the first are full; the first is as if there were zeros before it.
#pragma once

#include "device/block.cuh"
#include "frame/header.cuh"

namespace gradwire::checksum {

constexpr unsigned threads = 256, bytes_each = 128;
constexpr std::uint64_t bytes_block = threads * bytes_each;

// Bits are reflected: bit 31 is x^0.
constexpr std::uint32_t polynomial = 0x82F63B78u, one = 0x80000000u;

// a * x
__host__ __device__ constexpr std::uint32_t times_x(std::uint32_t a) { return a >> 1 ^ (a & 1 ? polynomial : 0); }

// a * b
__host__ __device__ constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = one; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = times_x(b);
    }
    return product;
}

// x^(8 * bytes), of a power of two of bytes.
__host__ __device__ constexpr std::uint32_t shift_of(std::uint64_t bytes) {
    std::uint32_t power = 0x00800000u;  // x^8
    for (; bytes > 1; bytes /= 2) power = times(power, power);
    return power;
}

struct Shared {
    std::uint32_t table[256];       // of one byte
    std::uint32_t warps[threads / warp_threads];
};

// Byte `at` of a frame without its checksum.
__device__ inline std::uint32_t byte_at(const std::uint8_t* frame, std::uint64_t at) {
    constexpr std::uint64_t before = 4 * checksum_word;
    const std::uint32_t byte = frame[at < before ? at : at + 4];
    // As if the register began with ones.
    return at < 4 ? byte ^ 0xff : byte;
}

// What part `part` of a frame of `len` bytes adds to the checksum, in thread 0; parts are counted from
// the end. All threads of a block call.
__device__ inline std::uint32_t of_part(const std::uint8_t* frame, std::uint64_t len, std::uint64_t part,
                                        Shared& shared) {
    std::uint32_t entry = threadIdx.x;
    for (unsigned bit = 0; bit < 8; ++bit) entry = times_x(entry);
    shared.table[threadIdx.x] = entry;
    __syncthreads();
    // The last thread has the last bytes.
    const std::uint64_t message = len - 4;
    const std::uint64_t behind = part * bytes_block + static_cast<std::uint64_t>(threads - 1 - threadIdx.x) * bytes_each;
    std::uint32_t sum = 0;
    if (behind < message) {
        const std::uint64_t end = message - behind, begin = end > bytes_each ? end - bytes_each : 0;
        for (std::uint64_t at = begin; at < end; ++at)
            sum = sum >> 8 ^ shared.table[(sum ^ byte_at(frame, at)) & 0xff];
    }
    // Neighbours, then pairs of neighbours: the first of two is as many bytes before.
    std::uint32_t shift = shift_of(bytes_each);
    for (unsigned by = 1; by < warp_threads; by *= 2) {
        const std::uint32_t other = __shfl_down_sync(all_lanes, sum, by);
        sum = times(sum, shift) ^ other;
        shift = times(shift, shift);
    }
    if (lane() == 0) shared.warps[warp()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
        for (unsigned i = 0; i < threads / warp_threads; ++i) sum = times(sum, shift) ^ shared.warps[i];
        std::uint32_t power = shift_of(bytes_block);
        for (std::uint64_t parts = part; parts != 0; parts /= 2) {
            if (parts % 2) sum = times(sum, power);
            power = times(power, power);
        }
    }
    return sum;
}

// How many parts a frame has.
__host__ __device__ inline std::uint64_t parts_of(std::uint64_t len) { return pieces(len - 4, bytes_block); }

}  // namespace gradwire::checksum
