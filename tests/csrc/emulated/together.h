// What threads of a warp or a block do together: barriers, shuffles, votes, matches, sums.
#pragma once

#include <cstring>
#include <type_traits>

#include "machine.h"

namespace emulated {

template <class T>
std::uint64_t packed(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T unpacked(std::uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// A shuffle's source lane: which lane it is, from one's own lane, the operand and the width.
using Source = int (*)(int lane, int operand, int width);

template <Source source>
EMULATED_UNWATCHED void shuffled(Thread* warp, unsigned mask) {
    for (int lane = 0; lane < warpSize; ++lane) {
        if (!(mask >> lane & 1)) continue;
        Meeting& own = warp[lane].meeting;
        const int operand = static_cast<int>(own.with >> 32);
        const int width = static_cast<int>(own.with & 0xffffffff);
        const int from = source(lane, operand, width);
        own.taken = warp[from & 31].meeting.given;
        if (!(mask >> (from & 31) & 1)) own.taken = 0xbad0bad0bad0bad0;
    }
}

template <Source source, class T>
T shuffle(const char* word, unsigned mask, T value, int operand, int width, const Where& where) {
    const auto with = std::uint64_t(std::uint32_t(operand)) << 32 | std::uint32_t(width);
    return unpacked<T>(meet(word, mask, packed(value), with, shuffled<source>, where));
}

inline int source_index(int lane, int operand, int width) {
    return (lane & ~(width - 1)) + (operand & (width - 1));
}
inline int source_up(int lane, int operand, int width) {
    return (lane & (width - 1)) >= operand ? lane - operand : lane;
}
inline int source_down(int lane, int operand, int width) {
    return (lane & (width - 1)) + operand < width ? lane + operand : lane;
}
inline int source_xor(int lane, int operand, int width) {
    const int from = lane ^ operand;
    return (from & ~(width - 1)) <= (lane & ~(width - 1)) ? from : lane;
}

EMULATED_UNWATCHED inline void balloted(Thread* warp, unsigned mask) {
    unsigned votes = 0;
    for (int lane = 0; lane < warpSize; ++lane)
        if (mask >> lane & 1 && warp[lane].meeting.given) votes |= 1u << lane;
    for (int lane = 0; lane < warpSize; ++lane)
        if (mask >> lane & 1) warp[lane].meeting.taken = votes;
}

EMULATED_UNWATCHED inline void matched(Thread* warp, unsigned mask) {
    for (int lane = 0; lane < warpSize; ++lane) {
        if (!(mask >> lane & 1)) continue;
        std::uint64_t equal = 0;
        for (int other = 0; other < warpSize; ++other)
            if (mask >> other & 1 && warp[other].meeting.given == warp[lane].meeting.given)
                equal |= 1u << other;
        warp[lane].meeting.taken = equal;
    }
}

template <class T, class Combine>
EMULATED_UNWATCHED void reduced(Thread* warp, unsigned mask) {
    const Combine combine;
    const int first = __builtin_ctz(mask);
    T total = unpacked<T>(warp[first].meeting.given);
    for (int lane = first + 1; lane < warpSize; ++lane)
        if (mask >> lane & 1) total = combine(total, unpacked<T>(warp[lane].meeting.given));
    for (int lane = 0; lane < warpSize; ++lane)
        if (mask >> lane & 1) warp[lane].meeting.taken = packed(total);
}

inline void nothing(Thread*, unsigned) {}

}  // namespace emulated

#define EMULATED_WHERE const emulated::Where& where = emulated::Where::current()

inline void __syncthreads(EMULATED_WHERE) { emulated::barrier(0, where); }
inline int __syncthreads_count(int vote, EMULATED_WHERE) {
    return emulated::barrier(vote != 0, where);
}
inline int __syncthreads_or(int vote, EMULATED_WHERE) {
    return emulated::barrier(vote != 0, where) != 0;
}
inline int __syncthreads_and(int vote, EMULATED_WHERE) {
    return emulated::barrier(vote == 0, where) == 0;
}

inline void __syncwarp(unsigned mask = 0xffffffff, EMULATED_WHERE) {
    emulated::meet("__syncwarp", mask, 0, 0, emulated::nothing, where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATED_WHERE) {
    return emulated::shuffle<emulated::source_index>("__shfl_sync", mask, value, lane, width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATED_WHERE) {
    return emulated::shuffle<emulated::source_up>("__shfl_up_sync", mask, value, int(by), width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATED_WHERE) {
    return emulated::shuffle<emulated::source_down>("__shfl_down_sync", mask, value, int(by), width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, EMULATED_WHERE) {
    return emulated::shuffle<emulated::source_xor>("__shfl_xor_sync", mask, value, with, width, where);
}

inline unsigned __ballot_sync(unsigned mask, int vote, EMULATED_WHERE) {
    return unsigned(emulated::meet("__ballot_sync", mask, vote != 0, 0, emulated::balloted, where));
}
inline int __any_sync(unsigned mask, int vote, EMULATED_WHERE) {
    return emulated::meet("__any_sync", mask, vote != 0, 0, emulated::balloted, where) != 0;
}
inline int __all_sync(unsigned mask, int vote, EMULATED_WHERE) {
    return emulated::meet("__all_sync", mask, vote != 0, 0, emulated::balloted, where) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, EMULATED_WHERE) {
    return unsigned(emulated::meet("__match_any_sync", mask, emulated::packed(value), 0, emulated::matched, where));
}

#define EMULATED_REDUCE(word, type, expression)                                           \
    inline type word(unsigned mask, type value, EMULATED_WHERE) {                         \
        struct Combine {                                                                  \
            type operator()(type a, type b) const { return expression; }                  \
        };                                                                                \
        const auto resolve = emulated::reduced<type, Combine>;                            \
        return emulated::unpacked<type>(                                                  \
            emulated::meet(#word, mask, emulated::packed(value), 0, resolve, where));     \
    }
EMULATED_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATED_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
EMULATED_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATED_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMULATED_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
EMULATED_REDUCE(__reduce_max_sync, int, a < b ? b : a)
EMULATED_REDUCE(__reduce_and_sync, unsigned, a & b)
EMULATED_REDUCE(__reduce_or_sync, unsigned, a | b)
EMULATED_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef EMULATED_REDUCE
