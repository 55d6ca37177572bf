// What owners of ranges keep of sums: the frames that they have made of them say the rest.
#pragma once

#include "bucket/apply.cuh"
#include "scan/tensor.cuh"

namespace gradwire {

// What a frame decodes to in a part of a tensor; zero where nothing was sent, which takes nothing away.
struct Decoded {
    float values[tile_elements];
};

// The key of the rounding of sums that stay: no encode draws the same.
__device__ inline std::uint64_t absorbing_key(const Memory& memory, const State& state) {
    return make_key(memory.seed, state.tensor, state.step, ~state.stream ^ std::uint64_t{3} << 62);
}

// As rust/core/src/bucket/merge.rs: what is zero changes nothing, and what is not finite is counted.
__global__ void __launch_bounds__(apply_threads) absorb_left(Decode call, Work work, Absorb absorb) {
    GRADWIRE_SHARED(Decoded, decoded);
    if (*call.failed != 0) return;
    const TargetTile tile(call);
    const unsigned index = tile.tensor;
    const std::uint64_t begin = tile.begin, end = tile.end;
    const Piece& piece = absorb.pieces[index];
    for (std::uint64_t i = threadIdx.x; i < tile_elements; i += apply_threads) decoded.values[i] = 0.0f;
    __syncthreads();
    visit_frames(call, work, index, begin, end, [&](std::uint32_t position, float value) {
        decoded.values[position - begin] = value;
    });
    const bool narrow = piece.memory.narrow != 0;
    void* const kept = piece.residual[piece.state->current];
    const std::uint64_t key = narrow ? absorbing_key(piece.memory, *piece.state) : 0;
    const auto* const sums = static_cast<const float*>(call.targets[index].out);
    NotFinite bad;
    for (std::uint64_t at = begin + threadIdx.x; at < end; at += apply_threads) {
        const std::uint64_t position = absorb.starts[index] + at;
        auto* const wide = static_cast<float*>(kept) + position;
        auto* const half = static_cast<std::uint16_t*>(kept) + position;
        const float left = sums[at] - decoded.values[at - begin];
        const float sum = (narrow ? widen_bf16(*half) : *wide) + left;
        bad.add(magnitude(sum), at);
        if (magnitude(sum) >= not_finite || left == 0.0f) continue;
        if (narrow)
            *half = dithered(normal_or_zero(sum), key, static_cast<std::uint32_t>(position));
        else
            *wide = normal_or_zero(sum);
    }
    bad.gather<apply_threads>();
    bad.report(absorb.outcomes[2 * index], absorb.outcomes[2 * index + 1]);
}

}  // namespace gradwire
