// Blocks that work on one tensor together.
//
// A large tensor has many blocks, a small one shares a block with others. What follows is written for
// all threads of a team at once: each goes the same way, because all that decides is the same in each.
// Blocks of a team wait for each other, so that the launch must have all of its blocks resident: see
// `Blocks::together`. Between a read by all blocks and the next write there is a `sync`, as between a
// write and a read: a block may be a whole step behind the others.
#pragma once

#include "device/block.cuh"

namespace gradwire {

constexpr unsigned team_threads = 256;
constexpr unsigned widest_digit = 2048;  // bins of a histogram
constexpr unsigned team_histograms = 3;

// A sum over the blocks before one, and over all.
struct BlockSums {
    std::uint64_t before, total;
};

struct Team {
    unsigned rank, size;
    unsigned* arrivals;      // one; zero before the launch
    std::uint64_t* slots;    // two for each block
    std::uint32_t* bins;     // histograms; zero before the launch
    unsigned slot_turn, bin_turn;
    bool counted;            // whether there is something in them

    // Once, after all else: leaves the histograms as they were.
    __device__ void end() const {
        if (size == 1 || !counted) return;
        sync();
        if (rank == 0)
            for (unsigned i = threadIdx.x; i < team_histograms * widest_digit; i += team_threads) bins[i] = 0;
    }

    // Waits for all threads of the team; what they wrote before is seen after it.
    __device__ void sync() const {
        __syncthreads();
        if (size == 1) return;
        if (threadIdx.x == 0) {
            __threadfence();
            const unsigned ticket = atomicAdd(arrivals, 1u);
            const unsigned target = ticket - ticket % size + size;
            while (static_cast<int>(*static_cast<volatile unsigned*>(arrivals) - target) < 0)
                __nanosleep(40);
            __threadfence();
        }
        __syncthreads();
    }

    // Adds up what each block has: the same number in all of its threads.
    __device__ BlockSums sums(std::uint64_t own) {
        if (size == 1) return {0, own};
        std::uint64_t* const slot = slots + static_cast<std::uint64_t>(slot_turn) * size;
        slot_turn ^= 1;
        if (threadIdx.x == 0) slot[rank] = own;
        sync();
        std::uint64_t before = 0, after = 0;
        for (unsigned other = threadIdx.x; other < size; other += team_threads) {
            const std::uint64_t there = slot[other];
            (other < rank ? before : after) += there;
        }
        before = block_reduce<team_threads>(before, Sum{});
        after = block_reduce<team_threads>(after, Sum{});
        return {before, before + after};
    }

    __device__ std::uint64_t total(std::uint64_t own) { return sums(own).total; }

    // The share of this block of so many things in a row.
    __device__ std::uint64_t first(std::uint64_t count) const { return count / size * rank + (count % size) * rank / size; }
    __device__ std::uint64_t last(std::uint64_t count) const {
        return count / size * (rank + 1) + (count % size) * (rank + 1) / size;
    }
};

}  // namespace gradwire
