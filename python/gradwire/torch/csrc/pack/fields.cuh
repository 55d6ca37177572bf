// Writes bit streams, least significant bit first: fields of one width by a whole block, and ones.
#pragma once

#include "device/block.cuh"

namespace gradwire {

// Up to `Most` fields in shared memory, so that neither a thread's neighbours in a row nor in a column
// of 32 meet in a bank.
template <unsigned Most>
struct Fields {
    std::uint32_t words[Most + Most / 32];

    __device__ std::uint32_t& operator[](unsigned i) { return words[i + i / 32]; }
    __device__ std::uint32_t operator[](unsigned i) const { return words[i + i / 32]; }
};

// What becomes of words that a stream fills in part. Where others write to them at the same time, they
// are put together from parts by `or`, and must be zero before. A last word that memory ends in has
// another place to be put together in: nothing behind the end is touched.
struct Edges {
    std::uint32_t* tail = nullptr;  // that place; null where nobody else writes
    const std::uint8_t* last = nullptr;
};

// Adds bits to a word that is put together from parts.
__device__ inline void or_bits(std::uint8_t* word, std::uint32_t bits, const Edges& edges) {
    if (bits) atomicOr(word == edges.last ? edges.tail : reinterpret_cast<std::uint32_t*>(word), bits);
}

// Writes some bits of a 32-bit word to memory.
__device__ inline void store_bits(std::uint8_t* word, std::uint32_t bits, unsigned from, unsigned to,
                                  const Edges& edges) {
    if (from == 0 && to == 32) {
        *reinterpret_cast<std::uint32_t*>(word) = bits;
    } else if (edges.tail != nullptr) {
        or_bits(word, bits, edges);
    } else {
        for (unsigned bit = from / 8 * 8; bit < to; bit += 8) word[bit / 8] = static_cast<std::uint8_t>(bits >> bit);
    }
}

// Writes `n` fields of `width` bits from bit `at` of `out` on, which is aligned to four bytes. All
// threads of a block call. A field is `field(i)`, below 2^width. A width that is known to the compiler
// is `Width`; all fields have less than 2^32 bits.
template <unsigned Threads, unsigned Width = 0, class Field>
__device__ void write_fields(std::uint8_t* out, std::uint64_t at, unsigned n, unsigned width, const Edges& edges,
                             const Field& field) {
    if (Width != 0) width = Width;
    if (n == 0 || width == 0) return;
    const unsigned skip = static_cast<unsigned>(at % 32), bits = n * width;  // of the first word
    out += at / 32 * 4;
    for (unsigned word = 32 * threadIdx.x; word < skip + bits; word += 32 * Threads) {
        unsigned i = word > skip ? (word - skip) / width : 0;
        int shift = static_cast<int>(skip + i * width) - static_cast<int>(word);
        std::uint32_t filled = 0;
        for (; shift < 32 && i < n; ++i, shift += static_cast<int>(width)) {
            const std::uint32_t value = field(i);
            filled |= shift >= 0 ? value << shift : value >> -shift;
        }
        store_bits(out + word / 8, filled, word < skip ? skip - word : 0, min(skip + bits - word, 32u), edges);
    }
}

// The same for codes of values, whose width is mostly a power of two.
template <unsigned Threads, class Field>
__device__ void write_codes(std::uint8_t* out, std::uint64_t at, unsigned n, unsigned width, const Edges& edges,
                            const Field& field) {
    switch (width) {
        case 1: return write_fields<Threads, 1>(out, at, n, width, edges, field);
        case 2: return write_fields<Threads, 2>(out, at, n, width, edges, field);
        case 4: return write_fields<Threads, 4>(out, at, n, width, edges, field);
        case 8: return write_fields<Threads, 8>(out, at, n, width, edges, field);
        case 16: return write_fields<Threads, 16>(out, at, n, width, edges, field);
        case 32: return write_fields<Threads, 32>(out, at, n, width, edges, field);
        default: return write_fields<Threads>(out, at, n, width, edges, field);
    }
}

// Sets single bits of `out`, which is aligned and zero, in ascending order: those of one word at once.
struct Ones {
    std::uint8_t* out;
    const Edges& edges;
    std::uint64_t word = 0;
    std::uint32_t bits = 0;

    __device__ void set(std::uint64_t bit) {
        if (bit / 32 != word) {
            flush();
            word = bit / 32;
        }
        bits |= 1u << (bit % 32);
    }
    __device__ void flush() {
        or_bits(out + 4 * word, bits, edges);
        bits = 0;
    }
};

}  // namespace gradwire
