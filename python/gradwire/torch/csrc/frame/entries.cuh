// The entries of a frame in a part of the tensor, whatever its positions are coded in.
#pragma once

#include "pack/draw.cuh"
#include "frame/upper.cuh"

namespace gradwire {

// Position of an entry in chunks.
__device__ inline std::uint64_t chunk_position(const Frame& frame, std::uint64_t rank) {
    const Bytes fields = frame.indices.from(chunk_prologue);
    return rank / frame.k * frame.size + fields.field(rank, frame.width);
}

// Checks the entries in chunks whose rank is `first` modulo `step`: each is in its chunk and in the
// tensor, and after the one before it.
__device__ inline bool examine_chunks(const Frame& frame, std::uint64_t first, std::uint64_t step) {
    bool good = true;
    for (std::uint64_t rank = first; rank < frame.count; rank += step) {
        const std::uint64_t position = chunk_position(frame, rank), chunk = rank / frame.k;
        good &= position < (chunk + 1) * frame.size && position < frame.numel;
        if (rank % frame.k != 0) good &= chunk_position(frame, rank - 1) < position;
    }
    const std::uint64_t used = static_cast<std::uint64_t>(frame.count) * frame.width;
    if (first == 0 && used % 8 != 0) good &= frame.indices.byte(frame.indices.len - 1) >> (used % 8) == 0;
    return good;
}

// How many entries in chunks are at positions below `end`: those of a whole chunk are found without
// looking, the others by halving.
__device__ inline std::uint64_t chunk_rank(const Frame& frame, std::uint64_t end) {
    const std::uint64_t count = frame.count, chunk = end / frame.size;
    std::uint64_t low = chunk * frame.k, high = low + frame.k;
    if (high > count) high = count;
    if (low > count) low = count;
    return partition_point(low, high, [&](std::uint64_t rank) { return chunk_position(frame, rank) < end; });
}

// Calls `visit(rank, position)` with the entries at positions from `begin` to `end` of a frame that was
// found good. All threads of the block call; each visits some.
template <unsigned Threads, class Visit>
__device__ void visit_entries(const Frame& frame, const Upper& upper, const Directory& directory, std::uint64_t begin,
                              std::uint64_t end, const Visit& visit) {
    if (frame.count == 0) return;
    if (has_upper(frame)) return visit_upper<Threads>(frame, upper, directory, begin, end, visit);
    if (frame.coding == Coding::chunk_local) {
        const std::uint64_t stop = chunk_rank(frame, end);
        for (std::uint64_t rank = chunk_rank(frame, begin) + threadIdx.x; rank < stop; rank += Threads)
            visit(static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(chunk_position(frame, rank)));
        return;
    }
    // Dense, or a run that may go on at 0 after the last position: its entries there come first.
    const std::uint64_t start = frame.is_dense() ? 0 : frame.size, stop = start + frame.count;
    const std::uint64_t wrapped = stop > frame.numel ? stop - frame.numel : 0;
    for (std::uint64_t position = begin + threadIdx.x; position < end; position += Threads) {
        if (position >= wrapped && (position < start || position >= stop)) continue;
        const std::uint64_t rank = position < wrapped ? position : wrapped + position - start;
        visit(static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(position));
    }
}

}  // namespace gradwire
