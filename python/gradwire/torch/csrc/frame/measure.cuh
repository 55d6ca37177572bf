// How the positions of frames are coded, and how long the frames are.
#pragma once

#include "frame/writing.cuh"

namespace gradwire {

// Plans a frame whose tiles are measured, unless it is left out. All threads of a block call.
template <unsigned Threads>
__device__ void plan_frame(const Writing& writing, unsigned frame, bool left_out) {
    const Piece& piece = writing.pieces[frame];
    Selection& selection = writing.selections[frame];
    FrameState& state = writing.states[frame];
    if (left_out) {
        if (threadIdx.x == 0) state.nbytes = 0;
        return;
    }
    const std::uint64_t count = selection.count;
    const auto tiles = static_cast<unsigned>(pieces(count, writing.shapes[frame].tile));
    TileState* const own = writing.tile_states + writing.tiles[frame];
    const bool measured = is_measured(piece);
    Measure measure{};
    if (measured) {
        for (unsigned i = threadIdx.x; i < tiles; i += Threads) measure.add(own[i].measure);
        for (unsigned i = 0; i < rice_widths; ++i) measure.zeros[i] = block_reduce<Threads>(measure.zeros[i], Sum{});
        measure.strays = block_reduce<Threads>(measure.strays, Sum{});
    }
    const Coded positions = coded(piece, selection, measure);
    if (measured && positions.coding == Coding::rice && count > 0) {
        const unsigned chosen = positions.low_bits - first_rice_width(selection.positions[count - 1], count);
        std::uint32_t before = 0;
        for (unsigned base = 0; base < tiles; base += Threads) {
            const unsigned i = base + threadIdx.x;
            const auto sums = block_scan<Threads>(i < tiles ? own[i].measure.zeros[chosen] : 0u);
            if (i < tiles) own[i].zeros_before = before + sums.before;
            before += sums.total;
        }
    }
    if (threadIdx.x != 0) return;
    const std::uint64_t nbytes = frame_len(piece, count, positions);
    selection.nbytes = nbytes;
    state = {positions, nbytes > piece.limit ? 0 : nbytes, 0, 0, 0, 0, 0};
}

// Measures a tile; whoever comes last in its frame plans that. `apart`: each frame is written, whatever became
// of those before it. All threads of a block call.
template <unsigned Threads>
__device__ void measure_tile(const Writing& writing, std::uint64_t number, bool apart = false) {
    const Tile tile = tile_of(writing, number);
    const Piece& piece = writing.pieces[tile.frame];
    const Selection& selection = writing.selections[tile.frame];
    FrameTurns& turns = writing.frame_turns[tile.frame];
    const bool measured = is_measured(piece) && selection.status == Status::ok;
    const std::uint64_t tiles = measured ? pieces(selection.count, writing.shapes[tile.frame].tile) : 0;
    if (tile.number > 0 && tile.number >= tiles) return;
    bool last = true;
    if (tiles > 0) {
        const Measure measure = measure_positions<Threads>(selection.positions, selection.count, piece.pattern,
                                                           tile.begin, tile.begin + tile.n);
        if (threadIdx.x == 0) {
            writing.tile_states[number].measure = measure;
            __threadfence();
            last = atomicAdd(&turns.measured, 1u) + 1 == tiles;
            __threadfence();
        }
        last = __syncthreads_or(last && threadIdx.x == 0);
    }
    if (!last) return;
    const bool left_out = apart ? selection.status != Status::ok : is_left_out(writing.selections, tile.frame);
    plan_frame<Threads>(writing, tile.frame, left_out);
    __syncthreads();
    if (threadIdx.x == 0) turns.reach();
}

}  // namespace gradwire
