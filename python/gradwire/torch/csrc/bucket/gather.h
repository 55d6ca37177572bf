// Frames that follow one another: those of a bucket are put so, and those in messages are found by their headers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "bucket/piece.h"

namespace gradwire {

// Frames of pieces from the first one on that failed are left out: see `tabulate`. `most` is the sum of all
// limits: so much room there is at `out`.
cudaError_t launch_gather(const Piece* pieces, unsigned count, std::uint64_t most, std::uint8_t* out,
                          const std::int64_t* table, cudaStream_t stream);

// A row of the table of frames in messages, all of int64.
enum HeadColumn : unsigned {
    head_start,   // its first byte
    head_nbytes,  // 0: here is no frame
    head_numel,
    head_count,
    head_columns,
};

// Message i has the bytes of `data` from `bounds[2 i]` to `bounds[2 i + 1]`, and at most `most` rows in the
// table. What headers say is not checked but for the bytes: no frame reaches beyond its message.
cudaError_t launch_heads(const std::uint8_t* data, const std::int64_t* bounds, std::uint64_t messages, std::uint64_t most,
                         std::int64_t* table, cudaStream_t stream);

}  // namespace gradwire
