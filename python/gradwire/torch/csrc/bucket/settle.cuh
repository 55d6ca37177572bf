// The second half of an encode whose memories have one buffer: they become what the frames do not say.
#pragma once

#include "bucket/apply.cuh"
#include "scan/batch.cuh"

namespace gradwire {

// What a frame decodes to in a part of a tensor; zero where nothing was sent, which takes nothing away.
struct Decoded {
    float values[tile_elements];
};

// Whether this is the frame that the first half has written.
__device__ inline bool is_awaited(const Frame& frame, const State& state) {
    return state.pending && frame.stored == state.checksum;
}

// What is not finite, because the gradient has changed since, is dropped: no later encode could take it.
__global__ void __launch_bounds__(apply_threads) settle_memories(Decode call, Work work, Settle settle) {
    GRADWIRE_SHARED(Decoded, decoded);
    const unsigned index = segment_of(call.target_tiles, call.tensors, static_cast<std::uint32_t>(blockIdx.x));
    const Piece& piece = settle.pieces[index];
    if (*call.failed != 0 || !is_awaited(work.frames[index], *piece.state)) return;
    const Tensor& tensor = tensor_of_block(piece, settle.divisor, 1.0f);
    const std::uint64_t begin = (blockIdx.x - call.target_tiles[index]) * tile_elements;
    const std::uint64_t end = begin + tile_elements < tensor.numel ? begin + tile_elements : tensor.numel;
    for (std::uint64_t i = threadIdx.x; i < tile_elements; i += apply_threads) decoded.values[i] = 0.0f;
    __syncthreads();
    visit_frames(call, work, index, begin, end, [&](std::uint32_t position, float value) {
        decoded.values[position - begin] = value;
    });
    constexpr unsigned at_once = 8;
    bool changed = false, nonzero = false;
    for (std::uint64_t first = begin + threadIdx.x; first < end; first += at_once * apply_threads) {
        const Batch<at_once, apply_threads> batch{first, end};
        const Added added(tensor, batch, nonzero);
        batch.each([&](unsigned i, std::uint64_t at) {
            const bool finite = magnitude(added.sums[i]) < not_finite;
            changed |= !finite;
            if (tensor.next_moment != nullptr) tensor.next_moment[at] = finite ? added.moments[i] : 0.0f;
            tensor.put(at, finite ? normal_or_zero(added.sums[i] - decoded.values[at - begin]) : 0.0f);
        });
    }
    if (__syncthreads_or(changed) && threadIdx.x == 0) atomicOr(&settle.outcomes[index], 1u);
}

// The states take over what the first halves have left, where the second has come to its end.
__global__ void settle_states(Decode call, Work work, Settle settle) {
    const std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * apply_threads + threadIdx.x;
    if (i >= call.tensors) return;
    State& state = *settle.pieces[i].state;
    Settled& outcome = reinterpret_cast<Settled&>(settle.outcomes[i]);
    if (*call.failed != 0 || !is_awaited(work.frames[i], state)) outcome = Settled::unknown;
    if (outcome == Settled::done) {
        state.tracked = state.previous;
        state.step += 1;
        state.moment_steps += 1;
    }
    state.pending = 0;
}

}  // namespace gradwire
