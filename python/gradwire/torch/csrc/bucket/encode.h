// Encodes a whole bucket: its frames and its states, byte for byte those of the core.
#pragma once

#include "bucket/select.h"
#include "frame/plan.h"

namespace gradwire {

// The shape of the work on a bucket: see `plan_select` and `plan_write`.
struct EncodePlan {
    SelectPlan select;
    WritePlan write;

    // Whether a frame may become longer than the limit of its piece, of these in host memory.
    bool may_exceed(const Piece* pieces) const {
        for (unsigned i = 0; i < select.pieces; ++i)
            if (write.longest[i] > pieces[i].limit) return true;
        return false;
    }
};

EncodePlan plan_encode(const Piece* pieces, unsigned count, unsigned blocks);

// Memory of the device that a plan works in: tables that `fill_table` of its halves made, and scratch.
struct EncodeMemory {
    void* select_table;
    void* write_table;
    void* write_scratch;
};

// Adds up, selects, and writes frames and memories. Entries are divided by `divisor` first. What
// came of it is in the selections, and in a table: see `OutcomeColumn`. The pieces from the first one on
// whose status is not ok are as they were, but can no longer be rolled back. `trims` is what `may_exceed`
// tells of these pieces.
cudaError_t launch_encode(const EncodePlan& plan, const Piece* pieces, Selection* selections,
                          const EncodeMemory& memory, float divisor, bool trims,
                          std::int64_t* table, cudaStream_t stream);

}  // namespace gradwire
