// What the launches that write the frames of a bucket share.
#pragma once

#include "device/segments.cuh"
#include "frame/header.cuh"
#include "frame/plan.h"
#include "pack/write.cuh"
#include "quantize/summary.cuh"
#include "scan/batch.cuh"

namespace gradwire {

// What is known of a frame once its positions are measured.
struct FrameState {
    Coded coded;
    std::uint64_t nbytes;  // 0: it is not written
    int exponent;
    std::uint32_t fitted;  // chunks that are summed up
    std::uint32_t placed;  // chunks whose errors are
    std::uint32_t checksum, sealed;
    std::uint32_t tail;  // of a sparse frame, the bytes after the last whole word
};

struct TileState {
    Measure measure;
    std::uint32_t zeros_before;  // in the upper vector of Rice
};

// All that the launches of a bucket share. In device memory but for itself.
struct Writing {
    const Piece* pieces;
    Selection* selections;
    unsigned frames;
    const std::uint64_t *tiles, *fits, *parts;
    const FrameShape* shapes;
    FrameState* states;
    TileState* tile_states;
    Summary* summaries;
    float *scales, *errors;
};

// The tile that a block works on.
struct Tile {
    unsigned frame;
    std::uint32_t number;
    std::uint64_t begin;  // its first entry
    unsigned n;           // how many entries it has
};

__device__ inline Tile tile_of_block(const Writing& writing) {
    const unsigned frame = segment_of(writing.tiles, writing.frames, static_cast<std::uint64_t>(blockIdx.x));
    const auto number = static_cast<std::uint32_t>(blockIdx.x - writing.tiles[frame]);
    const std::uint32_t tile = writing.shapes[frame].tile;
    const std::uint64_t begin = static_cast<std::uint64_t>(number) * tile, count = writing.selections[frame].count;
    const std::uint64_t left = begin < count ? count - begin : 0;
    return {frame, number, begin, static_cast<unsigned>(left < tile ? left : tile)};
}

__device__ inline Edges edges_of(const Piece& piece, FrameState& state) {
    if (is_dense(piece)) return {};
    return {&state.tail, piece.frame + state.nbytes / 4 * 4};
}

// What the launches share, where table and scratch memory are.
Writing writing_in(const WritePlan& plan, const Piece* pieces, Selection* selections, const void* table, void* scratch);

// The launches that no policy changes.
cudaError_t launch_plan(const WritePlan& plan, const Writing& writing, cudaStream_t stream);
cudaError_t launch_seal(const WritePlan& plan, const Writing& writing, cudaStream_t stream);

}  // namespace gradwire
