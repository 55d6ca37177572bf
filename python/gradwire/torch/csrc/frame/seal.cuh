// Puts checksums into frames, a block for each part of their bytes; what is left of a bucket is done by the last.
#pragma once

#include "frame/checksum.cuh"
#include "frame/writing.cuh"

namespace gradwire {

// Part `number` of all.
__device__ inline void seal_part(const Writing& writing, std::uint64_t number) {
    GRADWIRE_SHARED(checksum::Shared, shared);
    const unsigned frame = segment_of(writing.parts, writing.frames, number);
    FrameState& state = writing.states[frame];
    const std::uint64_t part = number - writing.parts[frame], nbytes = state.nbytes;
    if (nbytes == 0 || part >= checksum::parts_of(nbytes)) return;
    const Piece& piece = writing.pieces[frame];
    std::uint8_t* const out = piece.frame;
    // Part of a word is put together elsewhere; its bytes are in the last part.
    if (!is_dense(piece) && part + 1 == checksum::parts_of(nbytes) && threadIdx.x < nbytes % 4)
        out[nbytes / 4 * 4 + threadIdx.x] = static_cast<std::uint8_t>(state.tail >> (8 * threadIdx.x));
    const std::uint32_t sum = checksum::of_part(out, nbytes, part, shared);
    if (threadIdx.x != 0) return;
    atomicXor(&state.checksum, sum);
    __threadfence();
    if (atomicAdd(&state.sealed, 1u) + 1 != checksum::parts_of(nbytes)) return;
    __threadfence();
    reinterpret_cast<std::uint32_t*>(out)[checksum_word] = ~atomicXor(&state.checksum, 0u);
}

// `Entries::end(bucket)` is called by all threads of one block once all frames are complete.
template <class Entries>
__global__ void seal_parts(Writing writing, typename Entries::Bucket bucket) {
    if (blockIdx.x < writing.parts[writing.frames]) seal_part(writing, blockIdx.x);
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&writing.turns->sealed, 1u) + 1 == gridDim.x;
        __threadfence();
    }
    if (!__syncthreads_or(last)) return;
    if (threadIdx.x == 0) {
        writing.turns->ticket = 0;
        atomicExch(&writing.turns->sealed, 0u);  // as all others have used it
    }
    for (unsigned i = threadIdx.x; i < writing.frames; i += checksum::threads) writing.frame_turns[i] = {};
    Entries::end(bucket);
}

}  // namespace gradwire
