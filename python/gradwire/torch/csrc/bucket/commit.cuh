// What is done once the frames of a bucket are written, by one block: states go on, and a table says it all.
#pragma once

#include "bucket/gather.h"
#include "bucket/select.cuh"
#include "frame/header.cuh"
#include "frame/length.cuh"

namespace gradwire {

// Has the states take over what was selected and written, of the pieces before the first that failed.
// All threads of a block call.
__device__ inline void commit(const Piece* pieces, Selection* selections, unsigned count) {
    unsigned failed = count;
    for (unsigned i = threadIdx.x; i < count; i += team_threads) {
        Selection& selection = selections[i];
        if (selection.status != Status::ok) continue;
        if (selection.nbytes > pieces[i].limit)
            selection.status = Status::limit;
        else if (is_dense(pieces[i]) && selection.peak >= not_finite)
            selection.status = Status::non_finite;
    }
    for (unsigned i = threadIdx.x; i < count; i += team_threads)
        if (selections[i].status != Status::ok && i < failed) failed = i;
    failed = block_reduce<team_threads>(failed, Least{});
    for (unsigned i = threadIdx.x; i < count; i += team_threads) {
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
// of a block call: each takes rows `team_threads` apart, and counts on from what all rows before have.
__device__ inline void tabulate(const Selection* selections, unsigned count, std::int64_t* table) {
    struct Shared {
        std::int64_t lens[team_threads];
    };
    GRADWIRE_SHARED(Shared, shared);
    std::int64_t before = 0;
    for (unsigned first = 0; first < count; first += team_threads) {
        const unsigned i = first + threadIdx.x;
        const bool ok = i < count && selections[i].status == Status::ok;
        shared.lens[threadIdx.x] = ok ? static_cast<std::int64_t>(selections[i].nbytes) : 0;
        __syncthreads();
        std::int64_t start = before, all = before;
        for (unsigned other = 0; other < team_threads; ++other) {
            if (other < threadIdx.x) start += shared.lens[other];
            all += shared.lens[other];
        }
        __syncthreads();
        before = all;
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
        row[outcome_start] = start;
        row[outcome_bad_count] = static_cast<std::int64_t>(selection.bad_count);
        row[outcome_bad_first] = static_cast<std::int64_t>(selection.bad_first);
    }
}

}  // namespace gradwire
