// How many entries are wanted: rust/core/src/sparsify/amount.rs.
#pragma once

#include "bucket/piece.h"

namespace gradwire {

__host__ __device__ inline std::uint64_t target_of(const Sparsify& options, std::uint64_t numel) {
    std::uint64_t wanted = options.k;
    if (!options.counted) {
        wanted = static_cast<std::uint64_t>(static_cast<double>(numel) * options.ratio);
        if (wanted == 0) wanted = 1;
    }
    return wanted < numel ? wanted : numel;
}

// How many survivors to keep at most in a search for the `k` largest.
__host__ __device__ inline std::uint64_t survivors_cap(std::uint64_t k, std::uint64_t numel) {
    std::uint64_t cap = 3 * k;
    if (cap < numel / 64) cap = numel / 64;
    return cap < 4096 ? 4096 : cap;
}

// How many survivors to aim at.
__host__ __device__ inline double survivors_aim(std::uint64_t k, std::uint64_t numel) {
    const double margin = k <= numel / 32 ? 2.0 : 1.25, wanted = static_cast<double>(k);
    return margin * wanted + 4.0 * sqrt(wanted) + 8.0;
}

// A number of entries that an upper end of a band allows.
__host__ __device__ inline std::uint64_t band_count(std::uint64_t target, double high, std::uint64_t numel) {
    const double most = static_cast<double>(target) * high;
    if (!(most < static_cast<double>(numel))) return numel;
    return static_cast<std::uint64_t>(most);
}

// `ceil(ratio * len)`, of a sample.
__host__ __device__ inline std::uint64_t share_of(double ratio, std::uint64_t len) {
    const double wanted = ceil(ratio * static_cast<double>(len));
    return wanted < static_cast<double>(len) ? static_cast<std::uint64_t>(wanted) : len;
}

// The rows and columns of the tiles of a matrix.
struct TileGrid {
    std::uint64_t rows, width, tile_rows, tile_columns;

    __host__ __device__ std::uint64_t bands() const { return (rows + tile_rows - 1) / tile_rows; }
    __host__ __device__ std::uint64_t stacks() const { return (width + tile_columns - 1) / tile_columns; }
};

__host__ __device__ inline TileGrid tile_grid(const Sparsify& options, std::uint64_t numel) {
    return {numel / options.width, options.width, options.tile_rows, options.tile_columns};
}

// The most entries that can be selected.
__host__ __device__ inline std::uint64_t max_count(const Sparsify& options, std::uint64_t numel) {
    switch (options.kind) {
        case Sparsifier::topk:
        case Sparsifier::random_k: return target_of(options, numel);
        case Sparsifier::sid:
            return options.banded ? band_count(target_of(options, numel), options.band_high, numel) : numel;
        case Sparsifier::sampled_topk: return share_of(options.ratio, numel);
        case Sparsifier::chunk_topk: {
            const std::uint64_t k = options.k, chunk = options.chunk;
            if (options.tile_rows == 0)
                return numel / chunk * (k < chunk ? k : chunk) + (numel % chunk < k ? numel % chunk : k);
            const TileGrid grid = tile_grid(options, numel);
            std::uint64_t total = 0;
            for (int last_row = 0; last_row < 2; ++last_row)
                for (int last_column = 0; last_column < 2; ++last_column) {
                    const std::uint64_t height = last_row ? grid.rows % grid.tile_rows : grid.tile_rows;
                    const std::uint64_t width = last_column ? grid.width % grid.tile_columns : grid.tile_columns;
                    const std::uint64_t tiles = (last_row ? height > 0 : grid.rows / grid.tile_rows) *
                                                (last_column ? width > 0 : grid.width / grid.tile_columns);
                    total += tiles * (k < height * width ? k : height * width);
                }
            return total;
        }
        default: return numel;
    }
}

}  // namespace gradwire
