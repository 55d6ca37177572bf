// The largest entries of each chunk of a tensor, or of each tile of a matrix (Chen et al., NeurIPS
// 2020; Sarfi et al., 2025). Ties go to the lower position, zeros are not sent.
#pragma once

#include "sparsify/amount.cuh"
#include "sparsify/marks.cuh"

namespace gradwire {

// Entries that are looked at together: a run, or the rows of a tile.
struct Group {
    std::uint64_t first, size, row, stride;

    __device__ std::uint64_t position(std::uint64_t j) const {
        return row == size ? first + j : first + j / row * stride + j % row;
    }
};

__device__ inline std::uint64_t count_groups(const Sparsify& options, std::uint64_t numel) {
    if (options.tile_rows == 0) return pieces(numel, options.chunk);
    const TileGrid grid = tile_grid(options, numel);
    return grid.bands() * grid.stacks();
}

__device__ inline Group group_of(const Sparsify& options, std::uint64_t numel, std::uint64_t group) {
    if (options.tile_rows == 0) {
        const std::uint64_t first = group * options.chunk;
        const std::uint64_t size = numel - first < options.chunk ? numel - first : options.chunk;
        return {first, size, size, 0};
    }
    const TileGrid grid = tile_grid(options, numel);
    const std::uint64_t top = group / grid.stacks() * grid.tile_rows, left = group % grid.stacks() * grid.tile_columns;
    const std::uint64_t height = grid.rows - top < grid.tile_rows ? grid.rows - top : grid.tile_rows;
    const std::uint64_t width = grid.width - left < grid.tile_columns ? grid.width - left : grid.tile_columns;
    return {top * grid.width + left, height * width, height == 1 ? height * width : width, grid.width};
}

// Marks the `k` largest of a group. A warp calls.
__device__ inline void mark_largest(Desk& desk, const Group& group, std::uint64_t k, const WrittenEntry& entry) {
    // The largest bits that at least `k` magnitudes reach, from the highest bit down.
    std::uint32_t least = 0;
    if (k < group.size)
        for (std::uint32_t bit = 0x40000000; bit != 0; bit /= 2) {
            std::uint64_t reach = 0;
            for (std::uint64_t j = lane(); j < group.size; j += warp_threads)
                reach += magnitude(entry(group.position(j))) >= (least | bit);
            if (warp_reduce(reach, Sum{}) >= k) least |= bit;
        }
    std::uint64_t above = 0;
    for (std::uint64_t j = lane(); j < group.size; j += warp_threads)
        above += magnitude(entry(group.position(j))) > least;
    std::uint64_t ties = k - warp_reduce(above, Sum{});
    for (std::uint64_t at = 0; at < group.size; at += warp_threads) {
        const std::uint64_t j = at + lane();
        const std::uint64_t position = group.position(j < group.size ? j : 0);
        const std::uint32_t bits = j < group.size ? magnitude(entry(position)) : 0;
        const unsigned equal = __ballot_sync(all_lanes, j < group.size && bits == least);
        const bool tie = (equal >> lane() & 1) && static_cast<unsigned>(__popc(equal & lanes_below())) < ties;
        if (bits > least || (tie && bits != 0)) mark(desk, position);
        const std::uint64_t taken = __popc(equal);
        ties = taken < ties ? ties - taken : 0;
    }
}

// The same where one is wanted: the first of the largest.
__device__ inline void mark_leader(Desk& desk, const Group& group, const WrittenEntry& entry) {
    std::uint32_t highest = 0;
    std::uint64_t first = 0;
    for (std::uint64_t j = lane(); j < group.size; j += warp_threads) {
        const std::uint32_t bits = magnitude(entry(group.position(j)));
        if (bits > highest) {
            highest = bits;
            first = j;
        }
    }
    const std::uint32_t most = warp_reduce(highest, Greatest{});
    first = warp_reduce(highest == most ? first : ~std::uint64_t(0), Least{});
    if (lane() == 0 && most != 0) mark(desk, group.position(first));
}

__device__ GRADWIRE_APART inline Selected select_chunks(ScannedTensor& scanned) {
    const Sparsify& options = scanned.options;
    Team& team = scanned.team;
    clear_marks(team, scanned.desk, scanned.numel);
    const std::uint64_t groups = count_groups(options, scanned.numel);
    for (std::uint64_t g = team.first(groups) + warp(); g < team.last(groups); g += team_warps) {
        const Group group = group_of(options, scanned.numel, g);
        if (options.k == 1)
            mark_leader(scanned.desk, group, scanned.entry);
        else
            mark_largest(scanned.desk, group, options.k, scanned.entry);
    }
    take_marks(scanned);
    return {max_count(options, scanned.numel), true, 0.0f, 0.0f};
}

}  // namespace gradwire
