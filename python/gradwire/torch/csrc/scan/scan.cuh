// Reads of a whole tensor, a chunk of it by each block at a time, and sums over them in the lanes and the tree of the
// core.
//
// A chunk has sixteen lanes in float64, entry i goes to lane i % 16, and entries are added one after
// the other; the lanes are added in a tree, and chunks in their order. Any other order would round
// differently, and thresholds, and so frames, would differ from the core's.
#pragma once

#include "bucket/piece.h"
#include "scan/rows.cuh"
#include "scan/team.cuh"

namespace gradwire {

constexpr std::uint64_t chunk_entries = 65536;  // whose sums are added up before they join others
constexpr unsigned tile_entries = 2048;         // between which products of mantissas are brought back
constexpr unsigned lanes_of_sums = 16;
constexpr unsigned team_warps = team_threads / warp_threads;
constexpr unsigned rows_of_chunk = chunk_entries / row_entries;
static_assert(tile_entries == step_entries * team_warps);
constexpr std::uint64_t words_of_chunk = chunk_entries / 32;

// Where a block puts what is added up one after the other: the entries of a tile, or parts.
union TileShared {
    float entries[tile_entries];
    double parts[2][team_threads];
};

__device__ inline TileShared& tile_room() {
    GRADWIRE_SHARED(TileShared, shared);
    return shared;
}

// Adds sixteen lanes, those of either half of a warp, into the first of each.
__device__ inline double reduce_lanes(double value) {
    for (unsigned width = lanes_of_sums / 2; width > 0; width /= 2) {
        const double other = __shfl_down_sync(all_lanes, value, width);
        if (lane() % lanes_of_sums < width) value += other;
    }
    return value;
}

// One lane of the sums of exceedances; the lower half of a warp adds them, the upper half squares.
struct ExceedanceLane {
    double sum = 0.0;
    std::uint32_t count = 0;

    __device__ void add(float value, float location) {
        const float difference = fabsf(value) - location;
        const bool above = difference > 0.0f;
        const double excess = above ? static_cast<double>(difference) : 0.0;
        count += above;
        sum += lane() < lanes_of_sums ? excess : excess * excess;
    }

    // Writes the sums of all lanes down. All threads of a warp call.
    __device__ void finish(Moments& part) const {
        const double reduced = reduce_lanes(sum);
        const double squares = __shfl_sync(all_lanes, reduced, static_cast<int>(lanes_of_sums));
        const std::uint32_t exceeding = warp_reduce(lane() < lanes_of_sums ? count : 0u, Sum{});
        if (lane() == 0) part = {exceeding, reduced, squares};
    }
};

// What a block found in a chunk; the same in all threads.
struct ChunkFound {
    std::uint32_t marked, peak;
};

// What a chunk is made of, and what is asked of it.
struct Chunk {
    std::uint64_t number, begin, end;
    Request request;

    __device__ Chunk(std::uint64_t numel, std::uint64_t number, const Request& request)
        : number(number), begin(number * chunk_entries),
          end(numel - begin < chunk_entries ? numel : begin + chunk_entries), request(request) {}

    // Whether all of its rows are whole, and tiles, if those are read.
    __device__ bool is_whole() const { return (end - begin) % (request.located ? tile_entries : row_entries) == 0; }

    // What no magnitude is above if nothing is to be marked.
    __device__ float bound() const { return request.above ? request.bound : float_of(not_finite); }
};

// Puts together what the warps have found.
__device__ inline ChunkFound found_by_warps(std::uint32_t marked, std::uint32_t peak) {
    return {block_reduce<team_threads>(lane() == 0 ? marked : 0u, Sum{}),
            block_reduce<team_threads>(peak, Greatest{})};
}

// Reads a chunk, a row by each warp: finds candidates. `entries.read` is as for `read_row`, and
// `entries(position)` gives one of those that were read.
template <class Entries, class MakeBatch>
__device__ ChunkFound read_rows(const Desk& desk, const Chunk& chunk, Entries entries, MakeBatch batch) {
    Seen seen{chunk.bound()};
    std::uint32_t marked = 0;
    for (std::uint64_t row = chunk.begin + warp() * row_entries; row < chunk.end; row += team_warps * row_entries) {
        const std::uint32_t word = read_row(row, entries, seen, batch);
        __syncwarp();  // other lanes have written what is read now
        if (chunk.request.above)
            marked += keep_candidates(desk, row, word, [&](unsigned i) { return entries(row + i); });
    }
    return found_by_warps(marked, seen.peak);
}

// The same, and takes sums, for which all warps read a tile at a time.
template <class Entries, class MakeBatch>
__device__ ChunkFound read_tiles(const Desk& desk, const Chunk& chunk, Entries entries, MakeBatch make_batch) {
    TileShared& tile = tile_room();
    Seen seen{chunk.bound()};
    std::uint32_t marked = 0;
    ExceedanceLane sums;
    for (std::uint64_t at = chunk.begin; at < chunk.end; at += tile_entries) {
        float values[entries_of_lane];
        const unsigned own = warp() * step_entries;
        const auto batch = make_batch(at + own);
        entries.read(batch, values);
        seen.marks(values);
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < entries_of_lane; ++i) tile.entries[batch.at(i) - at] = values[i];
        __syncthreads();
        // One warp takes sums. Entries are loaded ahead of the additions, which wait for each other; what a tile has
        // beyond the end is zero, and changes no sum.
        if (warp() == 0) {
#pragma unroll 8
            for (unsigned i = 0; i < tile_entries; i += lanes_of_sums)
                sums.add(tile.entries[lane() % lanes_of_sums + i], chunk.request.location);
        }
        // For each row another warp has time.
        const unsigned row = (warp() - 2) * row_entries;
        if (!chunk.request.above || warp() < 2 || row >= tile_entries || row >= chunk.end - at) continue;
        std::uint32_t word = 0;
        for (unsigned w = 0; w < warp_threads; ++w) {
            const unsigned above = __ballot_sync(all_lanes, fabsf(tile.entries[row + 32 * w + lane()]) > seen.bound);
            if (lane() == w) word = above;
        }
        marked += keep_candidates(desk, at + row, word, [&](unsigned i) { return tile.entries[row + i]; });
    }
    if (warp() == 0) sums.finish(desk.parts[chunk.number]);
    return found_by_warps(marked, seen.peak);
}

// Reads a chunk, and takes sums if those are asked for.
template <class Entries, class MakeBatch>
__device__ ChunkFound read_by(const Desk& desk, const Chunk& chunk, Entries entries, MakeBatch batch) {
    return chunk.request.located ? read_tiles(desk, chunk, entries, batch) : read_rows(desk, chunk, entries, batch);
}

// The same of any tensor; with `whole_quads_of_lane` instead, the chunk `is_whole` and its entries are aligned.
template <class Entries>
__device__ ChunkFound read_chunk(const Desk& desk, const Chunk& chunk, Entries entries) {
    return read_by(desk, chunk, entries, [&](std::uint64_t begin) { return quads_of_lane(begin, chunk.end); });
}

// Adds up what so many parts came to, in their order. All threads of one block call, for everyone.
__device__ GRADWIRE_APART inline void add_parts(Desk& desk, std::uint64_t parts) {
    constexpr unsigned fields = 2;
    double(&staged)[fields][team_threads] = tile_room().parts;
    std::uint64_t count = 0;
    double sum = 0.0;
    for (std::uint64_t at = 0; at < parts; at += team_threads) {
        const unsigned here = parts - at < team_threads ? static_cast<unsigned>(parts - at) : team_threads;
        __syncthreads();
        if (threadIdx.x < here) {
            const Moments part = desk.parts[at + threadIdx.x];
            count += part.count;
            staged[0][threadIdx.x] = part.sum;
            staged[1][threadIdx.x] = part.sum_sq;
        }
        __syncthreads();
        // A thread for each field; loaded ahead of the additions, which wait for each other.
        if (threadIdx.x < fields) {
#pragma unroll 8
            for (unsigned i = 0; i < here; ++i) sum += staged[threadIdx.x][i];
        }
    }
    __syncthreads();
    if (threadIdx.x < fields) staged[threadIdx.x][0] = sum;
    count = block_reduce<team_threads>(count, Sum{});
    if (threadIdx.x == 0) desk.total = {count, staged[0][0], staged[1][0]};
}

// The same of what a team has written before it met: one block adds up, and hands it on.
__device__ inline Moments total_of_parts(const Team& team, Desk& desk, std::uint64_t parts) {
    if (team.rank == 0) add_parts(desk, parts);
    team.sync();
    return desk.total;
}

// A read by a team of what was read before.
template <class Entries>
__device__ void read_again(const Team& team, Desk& desk, std::uint64_t numel, const Request& request,
                           Entries entries) {
    const std::uint64_t chunks = pieces(numel, chunk_entries);
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        const ChunkFound found = entries.read_chunk(desk, Chunk(numel, chunk, request));
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

// Lists the candidates of the last read, which were above this bound; so many are in the chunks before.
template <class Entries>
__device__ GRADWIRE_APART void list_candidates(const Team& team, const Desk& desk, std::uint64_t numel, List list,
                                               float bound, std::uint64_t before, Entries entries) {
    struct Shared {
        std::uint32_t found[rows_of_chunk];
        std::uint64_t before[rows_of_chunk];
    };
    GRADWIRE_SHARED(Shared, rows);
    const std::uint64_t chunks = pieces(numel, chunk_entries), all_rows = pieces(numel, row_entries);
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        const std::uint32_t here = desk.marked[chunk];
        if (here == 0) continue;
        const std::uint64_t first = chunk * rows_of_chunk;
        const bool there = threadIdx.x < rows_of_chunk && first + threadIdx.x < all_rows;
        const std::uint32_t own = there ? desk.found[first + threadIdx.x] : 0;
        const std::uint64_t place = before + block_scan<team_threads>(own).before;
        if (threadIdx.x < rows_of_chunk) {
            rows.found[threadIdx.x] = own;
            rows.before[threadIdx.x] = place;
        }
        __syncthreads();
        for (unsigned r = warp(); r < rows_of_chunk; r += team_warps) {
            const std::uint32_t found = rows.found[r];
            const std::uint64_t row = first + r;
            std::uint32_t* const positions = global(list.positions) + rows.before[r];
            float* const values = global(list.values) + rows.before[r];
            if (found <= desk.row_room) {
                const Candidate* const from = global(desk.candidates) + row * desk.row_room;
                for (unsigned i = lane(); i < found; i += warp_threads) {
                    const Candidate candidate = from[i];
                    positions[i] = candidate.position;
                    values[i] = candidate.value;
                }
                continue;
            }
            Seen seen{bound};
            const std::uint32_t word =
                read_row(row * row_entries, entries, seen, [=](std::uint64_t begin) { return quads_of_lane(begin, numel); });
            place_marked(word, found, [&](std::uint32_t at, unsigned i) {
                positions[at] = static_cast<std::uint32_t>(row * row_entries) + i;
                values[at] = entries(row * row_entries + i);
            });
        }
        __syncthreads();
        before += here;
    }
    team.sync();
}

}  // namespace gradwire
