// AdaComp (Chen et al., AAAI 2018): the entries of each bin that would matter as much as its largest
// if the new gradient were added once more.
#pragma once

#include "sparsify/marks.cuh"

namespace gradwire {

// Bins whose largest magnitudes are added up before they join others: the tiles and units of
// rust/core/src/scan/bins.rs, in bins.
struct BinSums {
    std::uint64_t of_tile, of_unit;
};

__device__ inline BinSums bin_sums(std::uint64_t bin) {
    const std::uint64_t most = tile_entries / bin > 1 ? tile_entries / bin : 1;
    std::uint64_t bins = most;
    while (bins > 0 && bins * bin % lanes_of_sums != 0) --bins;
    if (bins == 0) bins = most;
    const std::uint64_t tiles = chunk_entries / (bins * bin) > 1 ? chunk_entries / (bins * bin) : 1;
    return {bins, bins * tiles};
}

// Marks what a bin sends, and writes the bits of its largest magnitude down. A warp calls.
__device__ inline void mark_bin(Desk& desk, const Tensor& tensor, std::uint64_t first, std::uint64_t last, float ahead,
                                std::uint32_t* highest) {
    std::uint32_t most = 0;
    for (std::uint64_t i = first + lane(); i < last; i += warp_threads) {
        const std::uint32_t bits = magnitude(tensor.written(i));
        most = bits > most ? bits : most;
    }
    most = warp_reduce(most, Greatest{});
    if (lane() == 0) *highest = most;
    if (most == 0) return;
    const float least = float_of(most);
    for (std::uint64_t i = first + lane(); i < last; i += warp_threads) {
        const float sum = tensor.written(i);
        const bool large = fabsf(sum + ahead * tensor.fresh(i)) >= least;
        if (large && sum != 0.0f) mark(desk, i);
    }
}

__device__ GRADWIRE_APART inline Selected select_bins(ScannedTensor& scanned) {
    Team& team = scanned.team;
    Desk& desk = scanned.desk;
    const std::uint64_t numel = scanned.numel, bin = scanned.options.chunk, bins = pieces(numel, bin);
    const float ahead = scanned.options.soft - 1.0f;
    // The second list is free.
    std::uint32_t* const highest = desk.lists[1].positions;
    clear_marks(team, desk, numel);
    for (std::uint64_t b = team.first(bins) + warp(); b < team.last(bins); b += team_warps) {
        const std::uint64_t first = b * bin, last = first + bin < numel ? first + bin : numel;
        mark_bin(desk, scanned.entry.tensor, first, last, ahead, highest + b);
    }
    team.sync();
    const BinSums sizes = bin_sums(bin);
    const std::uint64_t units = pieces(bins, sizes.of_unit);
    for (std::uint64_t u = team.first(units) + threadIdx.x; u < team.last(units); u += team_threads) {
        const std::uint64_t end = (u + 1) * sizes.of_unit < bins ? (u + 1) * sizes.of_unit : bins;
        double sum = 0.0;
        for (std::uint64_t tile = u * sizes.of_unit; tile < end; tile += sizes.of_tile) {
            const std::uint64_t last = tile + sizes.of_tile < end ? tile + sizes.of_tile : end;
            double part = 0.0;
            for (std::uint64_t b = tile; b < last; ++b) part += static_cast<double>(float_of(highest[b]));
            sum += part;
        }
        desk.parts[u] = {0, 0, sum, 0.0, 0.0, 0.0};
    }
    take_marks(scanned);
    const double sum = total_of_parts(team, desk, units).sum;
    const std::uint64_t counted = bins > 1 ? bins : 1;
    return {0, false, 0.0f, static_cast<float>(sum / static_cast<double>(counted))};
}

}  // namespace gradwire
