// Selections that mark their entries one by one: a bit for each element.
#pragma once

#include "sparsify/scanned.cuh"

namespace gradwire {

// Takes all marks away.
__device__ inline void clear_marks(Team& team, Desk& desk, std::uint64_t numel) {
    const std::uint64_t words = pieces(numel, 32);
    for (std::uint64_t i = team.first(words) + threadIdx.x; i < team.last(words); i += team_threads) desk.mask[i] = 0;
    team.sync();
}

__device__ inline void mark(Desk& desk, std::uint64_t position) {
    atomicOr(desk.mask + position / 32, 1u << (position % 32));
}

// Lists what is marked; every entry, whatever it is, with its value.
__device__ GRADWIRE_APART inline void take_marks(ScannedTensor& scanned) {
    Team& team = scanned.team;
    Desk& desk = scanned.desk;
    team.sync();
    const std::uint64_t chunks = pieces(scanned.numel, chunk_entries), words = pieces(scanned.numel, 32);
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        std::uint32_t marked = 0;
        for (std::uint64_t w = chunk * words_of_chunk + threadIdx.x; w < (chunk + 1) * words_of_chunk && w < words;
             w += team_threads)
            marked += __popc(desk.mask[w]);
        marked = block_reduce<team_threads>(marked, Sum{});
        if (threadIdx.x == 0) desk.marked[chunk] = marked;
    }
    team.sync();
    const BlockSums all = count_marked(team, desk, scanned.numel);
    scanned.survivors = {&desk, all.total, 0};
    list_marked(team, desk, scanned.numel, scanned.survivors.list(), all.before, scanned.entry);
    scanned.complete = true;
}

}  // namespace gradwire
