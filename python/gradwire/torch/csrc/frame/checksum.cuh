// CRC-32C, in parts: of the bytes of a frame but for the four of the checksum itself.
//
// A checksum is a remainder of polynomials, and so it is linear: that of a message is the sum of those
// of its parts, each times x to the number of bits behind it. What is behind the checksum is read in
// words of 16 bytes, as if zeros followed; the powers of x that those add are divided out.
#pragma once

#include "device/block.cuh"
#include "frame/header.cuh"

namespace gradwire::checksum {

constexpr unsigned threads = 256, bytes_each = 256;
constexpr std::uint64_t bytes_part = threads * bytes_each;
constexpr std::uint64_t before_len = 4 * checksum_word, behind_at = before_len + 4;

// Bits are reflected: bit 31 is x^0.
constexpr std::uint32_t polynomial = 0x82F63B78u, one = 0x80000000u;

// a * x
__host__ __device__ constexpr std::uint32_t times_x(std::uint32_t a) { return a >> 1 ^ (a & 1 ? polynomial : 0); }

// a * b
__host__ __device__ constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (unsigned bit = 0; bit < 32; ++bit) {
        product ^= a & one ? b : 0;
        a <<= 1;
        b = times_x(b);
    }
    return product;
}

// x^n
__host__ __device__ constexpr std::uint32_t power(std::uint64_t n) {
    std::uint32_t result = one;
    for (std::uint32_t square = one >> 1; n != 0; n /= 2, square = times(square, square))
        if (n % 2) result = times(result, square);
    return result;
}

// x^n is one: the polynomial is x + 1 times one whose powers of x are all different up to there.
constexpr std::uint64_t order = (1ull << 31) - 1;
static_assert(power(order) == one);

struct Shared {
    std::uint32_t table[4][256];  // of a byte with none to three bytes behind it
    std::uint32_t warps[threads / warp_threads];
};

// All threads of a block call.
__device__ inline void make_table(Shared& shared) {
    std::uint32_t entry = threadIdx.x;
    for (unsigned bit = 0; bit < 8; ++bit) entry = times_x(entry);
    shared.table[0][threadIdx.x] = entry;
    __syncthreads();
    for (unsigned behind = 1; behind < 4; ++behind) {
        entry = entry >> 8 ^ shared.table[0][entry & 0xff];
        shared.table[behind][threadIdx.x] = entry;
    }
    __syncthreads();
}

__device__ inline std::uint32_t add_word(std::uint32_t sum, std::uint32_t word, const Shared& shared) {
    sum ^= word;
    return shared.table[3][sum & 0xff] ^ shared.table[2][sum >> 8 & 0xff] ^ shared.table[1][sum >> 16 & 0xff] ^
           shared.table[0][sum >> 24];
}

// The sum of all lanes, in the first: each has as many bytes behind the one before it.
template <unsigned By = 1>
__device__ inline std::uint32_t sum_of_warp(std::uint32_t sum) {
    if constexpr (By < warp_threads) {
        constexpr std::uint32_t shift = power(8ull * bytes_each * By);
        sum = times(sum, shift) ^ __shfl_down_sync(all_lanes, sum, By);
        return sum_of_warp<2 * By>(sum);
    }
    return sum;
}

// How many parts a frame of `len` bytes has.
__host__ __device__ inline std::uint64_t parts_of(std::uint64_t len) { return pieces(len - behind_at, bytes_part); }

// The 16 bytes of a frame of `len` bytes from `at` on, a multiple of 16 and not 0; zeros for what is
// behind it. In as wide loads as its address allows.
__device__ inline uint4 quad_at(const std::uint8_t* frame, std::uint64_t len, std::uint64_t at) {
    const auto off = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(frame) % 16);
    if (off == 0 && at + 16 <= len) return *reinterpret_cast<const uint4*>(frame + at);
    std::uint32_t words[5] = {};
    if (at + 20 <= len) {
        const auto* const aligned = reinterpret_cast<const std::uint32_t*>(frame + at - off % 4);
        for (unsigned i = 0; i < 5; ++i) words[i] = aligned[i];
        for (unsigned i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], off % 4 * 8);
    } else {
        for (unsigned i = 0; i < 16; ++i)
            if (at + i < len) words[i / 4] |= static_cast<std::uint32_t>(frame[at + i]) << (i % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
}

// What part `part` of a frame of `len` bytes adds to its checksum, in thread 0. All threads of a block
// call.
__device__ inline std::uint32_t of_part(const std::uint8_t* frame, std::uint64_t len, std::uint64_t part,
                                        Shared& shared) {
    __syncthreads();  // whoever has used it before is done
    make_table(shared);
    const std::uint64_t begin = behind_at + part * bytes_part + static_cast<std::uint64_t>(threadIdx.x) * bytes_each;
    std::uint32_t sum = 0;
    if (begin < len) {
        for (unsigned i = 0; i < bytes_each; i += 16) {
            const uint4 quad = quad_at(frame, len, begin + i);
            sum = add_word(sum, quad.x, shared);
            sum = add_word(sum, quad.y, shared);
            sum = add_word(sum, quad.z, shared);
            sum = add_word(sum, quad.w, shared);
        }
    }
    sum = sum_of_warp(sum);
    if (lane() == 0) shared.warps[warp()] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return 0;
    sum = 0;
    for (unsigned i = 0; i < threads / warp_threads; ++i)
        sum = times(sum, power(8ull * bytes_each * warp_threads)) ^ shared.warps[i];
    // What is behind this part, without the zeros behind the frame.
    const std::uint64_t end = behind_at + (part + 1) * bytes_part;
    sum = times(sum, power(end <= len ? 8 * (len - end) : order - 8 * (end - len) % order));
    if (part > 0) return sum;
    // The first words, as if the register began with ones.
    std::uint32_t first = 0;
    for (unsigned i = 0; i < before_len; ++i)
        first = first >> 8 ^ shared.table[0][(first ^ frame[i] ^ (i < 4 ? 0xff : 0)) & 0xff];
    return sum ^ times(first, power(8 * (len - behind_at)));
}

}  // namespace gradwire::checksum
