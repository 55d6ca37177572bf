// A running sum over the blocks of a launch, in one pass over the data.
//
// Each block adds up its own tile, publishes the sum, and looks back over its predecessors' until it
// meets one that already knows the sum of everything before (Merrill and Garland, "Single-pass
// Parallel Prefix Scan with Decoupled Look-back", 2016). Blocks may start in any order: each takes
// a ticket, and waits only for lower ones, whose blocks are running or done.
#pragma once

#include "block.cuh"

namespace gradwire {

// The tile that this block works on: the next one that no block has taken, in every thread.
__device__ inline unsigned take_ticket(unsigned* counter) {
    struct Shared {
        unsigned ticket;
    };
    GRADWIRE_SHARED(Shared, shared);
    if (threadIdx.x == 0) shared.ticket = atomicAdd(counter, 1u);
    __syncthreads();
    const unsigned ticket = shared.ticket;
    __syncthreads();
    return ticket;
}

namespace look_back {

// A tile's word: how far it has come, in two bits, and a sum below 2^62. Both change at once.
constexpr unsigned long long own = 1ull << 62;     // the sum of the tile alone
constexpr unsigned long long whole = 2ull << 62;   // the sum of the chain up to and with the tile
constexpr unsigned long long sum_bits = own - 1;

__device__ inline unsigned long long read(const unsigned long long* tile) {
    return *static_cast<const volatile unsigned long long*>(tile);
}

__device__ inline void publish(unsigned long long* tile, unsigned long long word) {
    *static_cast<volatile unsigned long long*>(tile) = word;
}

}  // namespace look_back

// The sum of `own_sum` over the tiles of the chain before this one, in every thread of the block.
//
// `first` is the chain's first tile, at most `ticket`: a tile per block, and several chains can lie
// one after another in the same tiles (one per tensor of a bucket). Sums stay below 2^62.
__device__ inline unsigned long long sum_before(unsigned long long* tiles, unsigned first, unsigned ticket,
                                                unsigned long long own_sum) {
    struct Shared {
        unsigned long long before;
    };
    GRADWIRE_SHARED(Shared, shared);
    if (warp() == 0) {
        unsigned long long before = 0;
        if (ticket > first) {
            if (lane() == 0) look_back::publish(tiles + ticket, look_back::own | own_sum);
            // The warp reads 32 predecessors at a time, the nearest in lane 0.
            for (long long nearest = static_cast<long long>(ticket) - 1; nearest >= static_cast<long long>(first);) {
                const long long at = nearest - lane();
                const bool there = at >= static_cast<long long>(first);
                const unsigned long long word = there ? look_back::read(tiles + at) : look_back::own;
                if (__any_sync(all_lanes, word < look_back::own)) {
                    __nanosleep(20);
                    continue;
                }
                // Lanes up to the nearest that knows the whole are added up; what lies before is in it.
                const unsigned known = __ballot_sync(all_lanes, word >= look_back::whole);
                const unsigned last = known ? static_cast<unsigned>(__ffs(static_cast<int>(known))) - 1 : warp_threads - 1;
                before += warp_reduce(lane() <= last && there ? word & look_back::sum_bits : 0ull, Sum{});
                if (known) break;
                nearest -= warp_threads;
            }
        }
        if (lane() == 0) {
            look_back::publish(tiles + ticket, look_back::whole | (before + own_sum));
            shared.before = before;
        }
    }
    __syncthreads();
    const unsigned long long before = shared.before;
    __syncthreads();
    return before;
}

}  // namespace gradwire
