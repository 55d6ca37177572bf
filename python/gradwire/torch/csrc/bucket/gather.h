// Puts the frames of a bucket behind one another, as a table says that tells what came of each.
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

// Frames of pieces from the first one on that failed are left out: see `tabulate`. `most` is the sum of all
// limits: so much room there is at `out`.
cudaError_t launch_gather(const Piece* pieces, unsigned count, std::uint64_t most, std::uint8_t* out,
                          const std::int64_t* table, cudaStream_t stream);

}  // namespace gradwire
