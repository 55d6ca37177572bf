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

// Makes survivors of what is marked, once each chunk has its count.
__device__ GRADWIRE_APART inline void list_marks(ScannedTensor& scanned) {
    const BlockSums all = count_marked(scanned.team, scanned.desk, scanned.numel);
    scanned.survivors = {&scanned.desk, all.total, 0};
    list_marked(scanned.team, scanned.desk, scanned.numel, scanned.survivors.list(), all.before, scanned.entry);
    scanned.complete = true;
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
    list_marks(scanned);
}

}  // namespace gradwire
