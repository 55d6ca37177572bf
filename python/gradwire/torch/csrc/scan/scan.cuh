// Reads of a whole tensor, a chunk of it by each block at a time.
#pragma once

#include "scan/batch.cuh"
#include "scan/desk.h"
#include "scan/sums.cuh"

namespace gradwire {

constexpr unsigned team_warps = team_threads / warp_threads;
constexpr unsigned words_of_tile = tile_entries / 32;
constexpr unsigned words_of_warp = words_of_tile / team_warps;
constexpr std::uint64_t words_of_chunk = chunk_entries / 32;

// Where a block puts what is added up one after the other: the entries of a tile, or parts.
union TileShared {
    float entries[tile_entries];
    double parts[4][team_threads];
};

__device__ inline TileShared& tile_room() {
    GRADWIRE_SHARED(TileShared, shared);
    return shared;
}

// The sums of a chunk, which two warps gather tile by tile.
struct ChunkSums {
    ExceedanceLane exceedance;
    LogLane log;
    double total = 0.0;

    __device__ void add(const TileShared& tile, unsigned entries, const Request& request) {
        const unsigned first = lane() % lanes_of_sums;
        if (warp() == 0) {
            for (unsigned i = first; i < entries; i += lanes_of_sums)
                exceedance.add(tile.entries[i], request.location);
        } else if (warp() == 1 && (request.logs || request.totals)) {
            if (lane() < lanes_of_sums) {
                for (unsigned i = first; i < entries; i += lanes_of_sums) log.add(tile.entries[i]);
                log.normalize();
            } else {
                for (unsigned i = first; i < entries; i += lanes_of_sums)
                    total += static_cast<double>(tile.entries[i]);
            }
        }
    }

    // Writes them down. All threads call.
    __device__ void finish(const Request& request, std::uint64_t entries, Moments* part) const {
        if (warp() == 0) {
            const double reduced = reduce_lanes(exceedance.sum);
            std::uint32_t count = lane() < lanes_of_sums ? exceedance.count : 0;
            count = warp_reduce(count, Sum{});
            if (lane() == 0) {
                part->sum = reduced;
                part->count = count;
                part->zeros = entries - count;
            }
            if (lane() == lanes_of_sums) part->sum_sq = reduced;
        } else if (warp() == 1) {
            const bool asked = lane() < lanes_of_sums ? request.logs : request.totals;
            double value = 0.0;
            if (asked) value = lane() < lanes_of_sums ? log.sum() : total;
            value = reduce_lanes(value);
            if (lane() == 0) part->sum_ln = value;
            if (lane() == lanes_of_sums) part->total = value;
        }
    }
};

// What a block found in a chunk; the same in all threads.
struct ChunkFound {
    std::uint32_t marked, peak;
};

// The entries that a thread reads of a tile: a row of its warp each.
using TileBatch = Batch<words_of_warp, warp_threads>;

// Reads a chunk: marks what is above the bound, takes sums. `entries.read(batch, values)` gives those at
// the positions of a batch, once for each, and zero where there is none.
template <class Entries>
__device__ ChunkFound read_chunk(Desk& desk, std::uint64_t numel, std::uint64_t chunk,
                                 const Request& request, Entries entries) {
    TileShared& tile = tile_room();
    const std::uint64_t begin = chunk * chunk_entries;
    const std::uint64_t end = numel - begin < chunk_entries ? numel : begin + chunk_entries;
    std::uint32_t marked = 0, peak = 0;
    ChunkSums sums;
    for (std::uint64_t at = begin; at < end; at += tile_entries) {
        float values[words_of_warp];
        entries.read(TileBatch{at + warp() * (words_of_warp * 32) + lane(), end}, values);
        std::uint32_t word = 0;
#pragma unroll
        for (unsigned w = 0; w < words_of_warp; ++w) {
            const std::uint32_t bits = magnitude(values[w]);
            peak = peak < bits ? bits : peak;
            if (!request.above) continue;
            const std::uint32_t found = __ballot_sync(all_lanes, fabsf(values[w]) > request.bound);
            marked += __popc(found);
            if (lane() == w) word = found;
        }
        if (request.above && lane() < words_of_warp) {
            const std::uint64_t place = at / 32 + warp() * words_of_warp + lane();
            if (place * 32 < end) desk.mask[place] = word;
        }
        if (request.located) {
            __syncthreads();
#pragma unroll
            for (unsigned w = 0; w < words_of_warp; ++w)
                tile.entries[warp() * (words_of_warp * 32) + lane() + 32 * w] = values[w];
            __syncthreads();
            const std::uint64_t left = end - at;
            sums.add(tile, left < tile_entries ? static_cast<unsigned>(left) : tile_entries, request);
        }
    }
    if (request.located) sums.finish(request, end - begin, desk.parts + chunk);
    ChunkFound found;
    // Each warp has counted once for each of its lanes.
    found.marked = block_reduce<team_threads>(lane() == 0 ? marked : 0u, Sum{});
    found.peak = block_reduce<team_threads>(peak, Greatest{});
    return found;
}

// Adds up what so many parts came to, in their order. All threads of a block call.
__device__ GRADWIRE_APART inline Moments total_of_parts(const Desk& desk, std::uint64_t parts) {
    constexpr unsigned fields = 4;
    double(&staged)[fields][team_threads] = tile_room().parts;
    Moments total{};
    double sum = 0.0;
    for (std::uint64_t at = 0; at < parts; at += team_threads) {
        const unsigned here = parts - at < team_threads ? static_cast<unsigned>(parts - at) : team_threads;
        __syncthreads();
        if (threadIdx.x < here) {
            const Moments part = desk.parts[at + threadIdx.x];
            total.count += part.count;
            total.zeros += part.zeros;
            staged[0][threadIdx.x] = part.sum;
            staged[1][threadIdx.x] = part.sum_sq;
            staged[2][threadIdx.x] = part.sum_ln;
            staged[3][threadIdx.x] = part.total;
        }
        __syncthreads();
        // A thread for each field.
        if (threadIdx.x < fields)
            for (unsigned i = 0; i < here; ++i) sum += staged[threadIdx.x][i];
    }
    __syncthreads();
    if (threadIdx.x < fields) staged[threadIdx.x][0] = sum;
    __syncthreads();
    total.count = block_reduce<team_threads>(total.count, Sum{});
    total.zeros = block_reduce<team_threads>(total.zeros, Sum{});
    total.sum = staged[0][0];
    total.sum_sq = staged[1][0];
    total.sum_ln = staged[2][0];
    total.total = staged[3][0];
    __syncthreads();
    return total;
}

// A read by a team of what was read before.
template <class Entries>
__device__ void read_again(const Team& team, Desk& desk, std::uint64_t numel, const Request& request,
                           Entries entries) {
    const std::uint64_t chunks = pieces(numel, chunk_entries);
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        const ChunkFound found = read_chunk(desk, numel, chunk, request, entries);
        if (threadIdx.x == 0) desk.marked[chunk] = found.marked;
    }
    team.sync();
}

// How many entries are marked, before this block's chunks and in all.
__device__ GRADWIRE_APART inline BlockSums count_marked(const Team& team, const Desk& desk, std::uint64_t numel) {
    const std::uint64_t chunks = pieces(numel, chunk_entries), first = team.first(chunks);
    std::uint64_t before = 0, after = 0;
    for (std::uint64_t chunk = threadIdx.x; chunk < chunks; chunk += team_threads) {
        const std::uint64_t here = desk.marked[chunk];
        (chunk < first ? before : after) += here;
    }
    before = block_reduce<team_threads>(before, Sum{});
    after = block_reduce<team_threads>(after, Sum{});
    return {before, before + after};
}

// Lists the marked entries, with `entry(position)` as their values.
template <class Entry>
__device__ GRADWIRE_APART void list_marked(const Team& team, const Desk& desk, std::uint64_t numel, List list,
                            std::uint64_t before, Entry entry) {
    const std::uint64_t chunks = pieces(numel, chunk_entries), words = pieces(numel, 32);
    constexpr unsigned each = words_of_chunk / team_threads;
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        const std::uint32_t here = desk.marked[chunk];
        if (here == 0) continue;
        const std::uint64_t first = chunk * words_of_chunk + threadIdx.x * each;
        std::uint32_t mine = 0;
        for (unsigned w = 0; w < each; ++w)
            if (first + w < words) mine += __popc(desk.mask[first + w]);
        std::uint64_t place = before + block_scan<team_threads>(mine).before;
        for (unsigned w = 0; w < each && mine > 0; ++w) {
            if (first + w >= words) break;
            for (std::uint32_t left = desk.mask[first + w]; left != 0; left &= left - 1) {
                const std::uint32_t at =
                    static_cast<std::uint32_t>((first + w) * 32) + __ffs(static_cast<int>(left)) - 1;
                list.positions[place] = at;
                list.values[place] = entry(at);
                ++place;
            }
        }
        before += here;
    }
    team.sync();
}

}  // namespace gradwire
