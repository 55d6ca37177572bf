// How the positions of frames are coded, and how long the frames are.
#include "device/probe.h"
#include "frame/writing.cuh"

namespace gradwire {

namespace {

__global__ void measure_tiles(Writing writing) {
    const Tile tile = tile_of_block(writing);
    const Piece& piece = writing.pieces[tile.frame];
    const Selection& selection = writing.selections[tile.frame];
    if (is_dense(piece) || selection.status != Status::ok || tile.n == 0) return;
    const Measure measure = measure_positions<write_threads>(selection.positions, selection.count, piece.pattern,
                                                             tile.begin, tile.begin + tile.n);
    if (threadIdx.x == 0) writing.tile_states[blockIdx.x].measure = measure;
}

__global__ void plan_frames(Writing writing) {
    const unsigned frame = blockIdx.x;
    const Piece& piece = writing.pieces[frame];
    Selection& selection = writing.selections[frame];
    FrameState& state = writing.states[frame];
    if (selection.status != Status::ok) {
        if (threadIdx.x == 0) state.nbytes = 0;
        return;
    }
    const std::uint64_t count = selection.count;
    const auto tiles = static_cast<unsigned>(pieces(count, writing.shapes[frame].tile));
    TileState* const own = writing.tile_states + writing.tiles[frame];
    const bool measured = !is_dense(piece) && needs_measure(static_cast<IndexCoding>(piece.indices));
    Measure measure{};
    if (measured) {
        for (unsigned i = threadIdx.x; i < tiles; i += write_threads) measure.add(own[i].measure);
        for (unsigned i = 0; i < rice_widths; ++i)
            measure.zeros[i] = block_reduce<write_threads>(measure.zeros[i], Sum{});
        measure.strays = block_reduce<write_threads>(measure.strays, Sum{});
    }
    const Coded positions = coded(piece, selection, measure);
    if (measured && positions.coding == Coding::rice && count > 0) {
        const unsigned chosen = positions.low_bits - first_rice_width(selection.positions[count - 1], count);
        std::uint32_t before = 0;
        for (unsigned base = 0; base < tiles; base += write_threads) {
            const unsigned i = base + threadIdx.x;
            const auto sums = block_scan<write_threads>(i < tiles ? own[i].measure.zeros[chosen] : 0u);
            if (i < tiles) own[i].zeros_before = before + sums.before;
            before += sums.total;
        }
    }
    if (threadIdx.x != 0) return;
    const std::uint64_t nbytes = frame_len(piece, count, positions);
    selection.nbytes = nbytes;
    if (nbytes > piece.limit) selection.status = Status::limit;
    state = {positions, nbytes > piece.limit ? 0 : nbytes, 0, 0, 0, 0, 0, 0};
}

const Kernels kernels{measure_tiles, plan_frames};

}  // namespace

cudaError_t launch_plan(const WritePlan& plan, const Writing& writing, cudaStream_t stream) {
    if (plan.measures) GRADWIRE_TRY(launch(measure_tiles, {plan.tiles.back()}, write_threads, stream, writing));
    return launch(plan_frames, {plan.frames()}, write_threads, stream, writing);
}

}  // namespace gradwire
