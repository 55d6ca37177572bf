// Puts checksums into frames, a block for each part of their bytes. The last block ends the bucket: states go on,
// and a table says what came of each piece.
#pragma once

#include "frame/checksum.cuh"
#include "frame/writing.cuh"

namespace gradwire {

// Has the states take over what was selected and written, of the pieces before the first that failed.
// All threads of a block call.
__device__ inline void commit(const Piece* pieces, Selection* selections, unsigned count) {
    unsigned failed = count;
    for (unsigned i = threadIdx.x; i < count; i += checksum::threads) {
        Selection& selection = selections[i];
        if (selection.status != Status::ok) continue;
        if (selection.nbytes > pieces[i].limit)
            selection.status = Status::limit;
        else if (is_dense(pieces[i]) && selection.peak >= not_finite)
            selection.status = Status::non_finite;
    }
    for (unsigned i = threadIdx.x; i < count; i += checksum::threads)
        if (selections[i].status != Status::ok && i < failed) failed = i;
    failed = block_reduce<checksum::threads>(failed, Least{});
    for (unsigned i = threadIdx.x; i < count; i += checksum::threads) {
        Selection& selection = selections[i];
        State& state = *pieces[i].state;
        // What the spare buffers held is written over, whether the encode failed or not.
        if (i >= failed) {
            state.undoable = 0;
            if (selection.status == Status::ok) selection.status = Status::skipped;
            continue;
        }
        state.previous = state.tracked;
        state.previous_moment_steps = state.moment_steps;
        state.tracked = {pieces[i].sparsify, selection.tracker};
        state.current = pieces[i].memory.kind != MemoryKind::none ? 1 - state.current : 0;
        state.step += 1;
        state.moment_steps += 1;
        state.undoable = 1;
    }
}

// Tells what came of each piece, and where its frame begins if all are put behind one another. All threads
// of a block call: each takes rows `checksum::threads` apart, and counts on from what all rows before have.
__device__ inline void tabulate(const Selection* selections, unsigned count, std::int64_t* table) {
    unsigned long long before = 0;
    for (unsigned first = 0; first < count; first += checksum::threads) {
        const unsigned i = first + threadIdx.x;
        const bool ok = i < count && selections[i].status == Status::ok;
        const auto scanned = block_scan<checksum::threads>(ok ? selections[i].nbytes : 0ull);
        const unsigned long long start = before + scanned.before;
        before += scanned.total;
        if (i >= count) continue;
        const Selection& selection = selections[i];
        std::int64_t* const row = table + static_cast<std::uint64_t>(i) * outcome_columns;
        row[outcome_status] = static_cast<std::int64_t>(selection.status);
        row[outcome_nbytes] = ok ? static_cast<std::int64_t>(selection.nbytes) : 0;
        row[outcome_count] = static_cast<std::int64_t>(selection.count);
        row[outcome_target] = selection.has_target ? static_cast<std::int64_t>(selection.target) : -1;
        row[outcome_trimmed] = static_cast<std::int64_t>(selection.trimmed);
        row[outcome_zero] = selection.zero;
        row[outcome_threshold] = __float_as_uint(selection.threshold);
        row[outcome_start] = static_cast<std::int64_t>(start);
        row[outcome_bad_count] = static_cast<std::int64_t>(selection.bad_count);
        row[outcome_bad_first] = static_cast<std::int64_t>(selection.bad_first);
    }
}

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

// One block tells what came of the frames once all are complete; before that it has states go on, if so.
template <bool commits>
__global__ void seal_parts(Writing writing, std::int64_t* outcomes) {
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
    if (commits) commit(writing.pieces, writing.selections, writing.frames);
    __syncthreads();
    tabulate(writing.selections, writing.frames, outcomes);
}

}  // namespace gradwire
