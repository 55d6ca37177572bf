// Puts the frames of a bucket behind one another, and says what came of each in a table.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "bucket/piece.h"

namespace gradwire {

// A row of the table, all of int64.
enum OutcomeColumn : unsigned {
    outcome_status,
    outcome_nbytes,
    outcome_count,
    outcome_target,     // -1: none
    outcome_trimmed,
    outcome_zero,
    outcome_threshold,  // bits of a float
    outcome_start,      // where its frame begins
    outcome_bad_count,  // entries that are not finite, where that is the status
    outcome_bad_first,  // and the position of the first of them
    outcome_columns,
};

// Frames of pieces from the first one on that failed are left out. `most` is the sum of all limits: so
// much room there is at `out`, which is null where the frames are in their places already.
cudaError_t launch_gather(const Piece* pieces, const Selection* selections, unsigned count, std::uint64_t most,
                          std::uint8_t* out, std::int64_t* table, cudaStream_t stream);

}  // namespace gradwire
