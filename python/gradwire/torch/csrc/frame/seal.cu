// Puts checksums into frames, a block for each part of their bytes.
#include "device/probe.h"
#include "frame/checksum.cuh"
#include "frame/writing.cuh"

namespace gradwire {

namespace {

__global__ void seal_parts(Writing writing) {
    GRADWIRE_SHARED(checksum::Shared, shared);
    const unsigned frame = segment_of(writing.parts, writing.frames, static_cast<std::uint64_t>(blockIdx.x));
    FrameState& state = writing.states[frame];
    const std::uint64_t part = blockIdx.x - writing.parts[frame], nbytes = state.nbytes;
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

const Kernels kernels{seal_parts};

}  // namespace

cudaError_t launch_seal(const WritePlan& plan, const Writing& writing, cudaStream_t stream) {
    return launch(seal_parts, {plan.parts.back()}, checksum::threads, stream, writing);
}

}  // namespace gradwire
