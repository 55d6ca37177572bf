// The shape of the selection for a whole bucket, and what undoes it. For its launches see select.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "bucket/piece.h"
#include "scan/desk.h"

namespace gradwire {

// The shape of the work on a bucket, which depends on the sizes of its tensors and on what their
// sparsifiers are, and the memory that it takes.
struct SelectPlan {
    unsigned pieces = 0, blocks = 0;
    std::uint64_t chunks = 0;
    std::vector<std::uint64_t> first_chunk;   // of each piece, and their number
    std::vector<std::uint32_t> first_piece;   // that each block works on
    std::vector<Desk> desks;                  // offsets in either memory instead of pointers
    std::vector<std::uint64_t> most_entries;  // the longest list that each piece can have
    std::uint64_t kept_bytes = 0;     // the plan's own, all zero before the first call: each begins with what one left
    std::uint64_t scratch_bytes = 0;  // to work in; nothing in them has to last from one call to the next

    // Bytes of the table that lies on the device as long as the plan is used, and what it holds at first,
    // if it goes with memory at these addresses of the device.
    std::uint64_t table_bytes() const;
    void fill_table(void* table, void* kept, void* scratch) const;
};

// Fills in options that follow from others and from the length of a tensor: how many stages a new controller has.
void complete(Piece& piece);

// `blocks` are as many as the device holds at once, or fewer: see `select_blocks`. The plan has no more
// than a block for each chunk: a launch whose blocks are all resident waits for room for all of them.
SelectPlan plan_select(const Piece* pieces, unsigned count, unsigned blocks);

// Blocks of a selection that the current device, which has this number, holds at once beside a collective.
cudaError_t select_blocks(int device, unsigned& blocks);

// Undoes the last encode of each state that can.
cudaError_t launch_rollback(const Piece* pieces, unsigned count, cudaStream_t stream);

}  // namespace gradwire
