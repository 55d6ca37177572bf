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
    std::uint32_t checksum, sealed;
    std::uint32_t tail;  // of a sparse frame, the bytes after the last whole word
};

struct TileState {
    Measure measure;
    std::uint32_t zeros_before;  // in the upper vector of Rice
};

// How far blocks have come that wait for each other, or of which the last goes on. Zero between calls.
struct Turns {
    unsigned ticket;  // of blocks that prepare
    unsigned sealed;  // blocks that have
};

struct FrameTurns {
    unsigned measured;  // tiles
    unsigned planned;   // whether the state of the frame is known

    // By one thread, which knows of all that was written before.
    __device__ void reach() {
        __threadfence();
        *static_cast<volatile unsigned*>(&planned) = 1;
    }

    // Waits until it is known, from blocks whose tickets are lower. All threads of a block call.
    __device__ void await() const {
        if (threadIdx.x == 0) {
            while (*static_cast<const volatile unsigned*>(&planned) == 0) __nanosleep(40);
            __threadfence();
        }
        __syncthreads();
    }
};

// All that the launches of a bucket share. In device memory but for itself.
struct Writing {
    const Piece* pieces;
    Selection* selections;
    unsigned frames;
    const std::uint64_t *tiles, *fits, *parts;
    const FrameShape* shapes;
    Turns* turns;
    FrameTurns* frame_turns;
    FrameState* states;
    TileState* tile_states;
    Summary* summaries;
    float* scales;
};

// Whether this piece or one before it cannot be encoded: then nothing of it is written. All threads of a
// block call.
__device__ inline bool is_left_out(const Selection* selections, unsigned index) {
    bool failed = false;
    for (unsigned i = threadIdx.x; i <= index; i += blockDim.x) failed |= selections[i].status != Status::ok;
    return __syncthreads_or(failed);
}

__device__ inline bool is_measured(const Piece& piece) {
    return !is_dense(piece) && needs_measure(static_cast<IndexCoding>(piece.indices));
}

// The tile that a block works on.
struct Tile {
    unsigned frame;
    std::uint32_t number;
    std::uint64_t begin;  // its first entry
    unsigned n;           // how many entries it has
};

__device__ inline Tile tile_of(const Writing& writing, std::uint64_t of_all) {
    const unsigned frame = segment_of(writing.tiles, writing.frames, of_all);
    const auto number = static_cast<std::uint32_t>(of_all - writing.tiles[frame]);
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
Writing writing_in(const WritePlan& plan, const Piece* pieces, Selection* selections, void* table, void* scratch);

}  // namespace gradwire
