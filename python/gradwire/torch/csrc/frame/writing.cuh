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

// The values of a piece, and where what was not sent goes. Of a dense piece the first read may not have been: what
// it does is done as values are read.
struct Entries {
    const Tensor& tensor;
    Selection& selection;
    const float* values;
    bool nonzero = false;

    // All threads of a block call.
    __device__ Entries(const Piece& piece, Selection& selection)
        : tensor(tensor_of_block(piece, selection.divisor, selection.scale)),
          selection(selection),
          values(selection.values) {}

    // The values of entries by their ranks, always the same, also if they were read before.
    template <unsigned Count, unsigned Step>
    __device__ void read(Batch<Count, Step> batch, float (&into)[Count]) {
        if (values != nullptr) return batch.read(values, into);
        const Added added(tensor, batch, nonzero);
        if (tensor.next_moment != nullptr) batch.write(added.moments, tensor.next_moment);
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) into[i] = added.sums[i];
    }

    // By each thread, in the end.
    __device__ void finish() {
        if (__any_sync(all_lanes, nonzero) && lane() == 0) atomicExch(&selection.zero, 0u);
    }
};

// Writes what a tile has of a frame but for codes, and for scales that it holds itself: the header, which is the first
// one's, positions, and a share of all scales, if `shares_scales`, whose bits are `scale(i)`. `fields` is the block's
// to use. All of its threads call.
template <class Scale>
__device__ void write_sections(const Writing& writing, const Tile& tile, Dtype dtype, int exponent, bool shares_scales,
                               Scale scale, Fields<most_tile>& fields) {
    const Piece& piece = writing.pieces[tile.frame];
    const Selection& selection = writing.selections[tile.frame];
    FrameState& state = writing.states[tile.frame];
    const Edges edges = edges_of(piece, state);
    const Coded coded = state.coded;
    const auto numel = static_cast<std::uint32_t>(piece.numel);
    const std::uint64_t count = selection.count, values_at = header_len + coded.len;
    const IndexSection section{piece.frame, header_len, coded, piece.pattern, selection.selection_key,
                               piece.numel, count,      edges};
    if (tile.number == 0) {
        const Header header{dtype, coded, exponent, count, value_len(piece.quantize, numel, count)};
        if (threadIdx.x < header_words)
            reinterpret_cast<std::uint32_t*>(piece.frame)[threadIdx.x] = header_word(piece, header, threadIdx.x);
        if (threadIdx.x == 0) write_index_prologue(section);
    }
    if (count == 0) return;
    const Prologue prologue = prologue_of(piece.quantize, numel);
    if (tile.number == 0)
        write_fields<write_threads, 32>(piece.frame, values_at * 8, prologue.len / 4, 32, edges,
                                        [&](unsigned i) { return prologue.words[i]; });
    if (shares_scales) {
        constexpr std::uint64_t most = 1 << 20;  // at once, so that their bits can be counted
        const std::uint64_t tiles = writing.shapes[tile.frame].tiles;
        const std::uint64_t all = (overhead(piece.quantize, numel, count) - prologue.len) / 4;
        const std::uint64_t end = all * (tile.number + 1) / tiles;
        for (std::uint64_t at = all * tile.number / tiles; at < end; at += most) {
            const auto here = static_cast<unsigned>(min(end - at, most));
            write_fields<write_threads, 32>(piece.frame, (values_at + prologue.len + 4 * at) * 8, here, 32, edges,
                                            [&](unsigned i) { return scale(at + i); });
        }
    }
    if (tile.n == 0 || is_dense(piece)) return;
    const bool gaps = coded.coding == Coding::rice;
    const std::uint32_t zeros = gaps ? writing.tile_states[blockIdx.x].zeros_before : 0;
    write_positions(section, selection.positions, tile.begin, tile.n, zeros, fields);
}

// What the launches share, where table and scratch memory are.
Writing writing_in(const WritePlan& plan, const Piece* pieces, Selection* selections, void* table, void* scratch);

}  // namespace gradwire
