// The shape of the selection for a whole bucket, and what undoes it. For its launches see select.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
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
    std::size_t kept = 0, scratch = 0;

    // Bytes of the table that lies on the device as long as the plan is used, and what it holds at first,
    // if it goes with memory at these addresses of the device.
    std::size_t table_bytes() const;
    void fill_table(void* table, void* kept_address, void* scratch_address) const;
    void divide_table(void* table, Desk*& desks, const std::uint64_t*& first_chunk,
                      const std::uint32_t*& first_piece) const;
    // Bytes that are the plan's own, all zero before the first call: the next one begins with what it left.
    std::size_t kept_bytes() const { return kept; }
    // Bytes to work in; nothing in them has to last from one call to the next.
    std::size_t scratch_bytes() const { return scratch; }
};

// `blocks` are as many as the device holds at once, or fewer: see `select_blocks`. The plan has no more
// than a block for each chunk: a launch whose blocks are all resident waits for room for all of them.
SelectPlan plan_select(const Piece* pieces, unsigned count, unsigned blocks);

// Blocks of a selection that the current device, which has this number, holds at once beside a collective.
cudaError_t select_blocks(int device, unsigned& blocks);

// Undoes the last encode of each state that can.
cudaError_t launch_rollback(const Piece* pieces, unsigned count, cudaStream_t stream);

}  // namespace gradwire
