// The candidates among 1024 entries in a row: a warp reads a row, and writes down what is above a bound.
//
// Rows wait for nothing: each has room of its own for candidates, and a number of how many there are. Of
// one that has more than fit none are kept; it is read again where candidates are listed.
#pragma once

#include "scan/batch.cuh"
#include "scan/desk.h"

namespace gradwire {

constexpr unsigned row_entries = 1024;  // a bit of a word for each, and a word for each lane
constexpr unsigned step_entries = 256;  // that a warp loads before it uses any
constexpr unsigned entries_of_lane = step_entries / warp_threads;

// This lane's entries of the 256 from one on, those that are less than `end`.
__device__ inline Quads<entries_of_lane> quads_of_lane(std::uint64_t begin, std::uint64_t end) {
    return {begin + lane() * quad, end};
}

// The same where all are there, and aligned.
__device__ inline WholeQuads<entries_of_lane> whole_quads_of_lane(std::uint64_t begin) { return {begin + lane() * quad}; }

// Each lane has four bits for each 128 entries of a row, as `Quads` has entries; then it has those of 32
// entries in a row, lane after lane.
__device__ inline std::uint32_t in_order(std::uint32_t marks) {
    // Eight lanes transpose what they have of eight times 32 entries.
    std::uint32_t other = __shfl_xor_sync(all_lanes, marks, 4);
    marks = lane() & 4 ? (marks & 0xffff0000) | other >> 16 : (marks & 0xffff) | other << 16;
    other = __shfl_xor_sync(all_lanes, marks, 2);
    marks = lane() & 2 ? (marks & 0xff00ff00) | (other >> 8 & 0xff00ff) : (marks & 0xff00ff) | (other << 8 & 0xff00ff00);
    other = __shfl_xor_sync(all_lanes, marks, 1);
    marks = lane() & 1 ? (marks & 0xf0f0f0f0) | (other >> 4 & 0x0f0f0f0f)
                       : (marks & 0x0f0f0f0f) | (other << 4 & 0xf0f0f0f0);
    return __shfl_sync(all_lanes, marks, static_cast<int>(lane() % 4 * 8 + lane() / 4));
}

// What a thread has seen of magnitudes.
struct Seen {
    float bound;
    std::uint32_t peak = 0;

    // Bits of those above the bound.
    template <unsigned Count>
    __device__ std::uint32_t marks(const float (&values)[Count]) {
        std::uint32_t above = 0;
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) {
            const std::uint32_t bits = magnitude(values[i]);
            peak = peak < bits ? bits : peak;
            if (fabsf(values[i]) > bound) above |= 1u << i;
        }
        return above;
    }
};

// Reads a row: the marks of 32 entries in a row in each lane. `entries.read(batch, values)` gives those at
// the positions of a batch, once for each, and zero where there is none; `batch(begin)` those of a warp.
template <class Entries, class MakeBatch>
__device__ std::uint32_t read_row(std::uint64_t begin, Entries& entries, Seen& seen, MakeBatch batch) {
    std::uint32_t marks = 0;
#pragma unroll 1
    for (unsigned at = 0; at < row_entries; at += step_entries) {
        float values[entries_of_lane];
        entries.read(batch(begin + at), values);
        marks = marks >> entries_of_lane | seen.marks(values) << (32 - entries_of_lane);
    }
    return __any_sync(all_lanes, marks != 0) ? in_order(marks) : 0;
}

// Calls `put(place, i)` for each marked entry `i` of a row, in order; how many there are. Nothing is called
// if they are more than there is room for.
template <class Put>
__device__ std::uint32_t place_marked(std::uint32_t word, std::uint64_t room, Put put) {
    const std::uint32_t own = __popc(word);
    const std::uint32_t reached = warp_inclusive_scan(own, Sum{});
    const std::uint32_t total = __shfl_sync(all_lanes, reached, warp_threads - 1);
    if (total > room) return total;
    std::uint32_t place = reached - own;
    for (; word != 0; word &= word - 1) put(place++, lane() * 32 + __ffs(static_cast<int>(word)) - 1);
    return total;
}

// Writes down what is marked in a row, with `entry(position)` as values; how many there are.
template <class Entry>
__device__ std::uint32_t keep_candidates(const Desk& desk, std::uint64_t begin, std::uint32_t word, Entry entry) {
    const std::uint64_t row = begin / row_entries;
    std::uint32_t found = 0;
    if (__any_sync(all_lanes, word != 0)) {
        Candidate* const to = global(desk.candidates) + row * desk.row_room;
        found = place_marked(word, desk.row_room, [&](std::uint32_t place, unsigned i) {
            to[place] = {static_cast<std::uint32_t>(begin) + i, entry(i)};
        });
    }
    if (lane() == 0) global(desk.found)[row] = found;
    return found;
}

}  // namespace gradwire
