// Puts right what a memory becomes of an entry that is sent.
#pragma once

#include "memory/rules.cuh"

namespace gradwire {

// The memory keeps of the entry what its receiver does not decode. Once for each entry, after the
// read that wrote what the memory becomes of entries that are not sent.
__device__ inline void settle(const Piece& piece, std::uint64_t position, float value, float decoded) {
    const MemoryKind kind = piece.memory.kind;
    if (kind == MemoryKind::none) return;
    const std::uint32_t current = piece.state->current;
    float* const next = piece.residual[is_in_place(piece) ? 0 : 1 - current];
    const float left = value - decoded;
    if (kind == MemoryKind::low_pass) {
        next[position] = filtered(piece.memory.beta, piece.residual[current][position], left);
        return;
    }
    next[position] = left;
    if (piece.memory.masking) piece.moment[1 - current][position] = 0.0f;
}

}  // namespace gradwire
