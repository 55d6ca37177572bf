// Cuts frames by ranges of positions, as rust/core/src/frame/split.rs: positions are coded anew, and codes
// and scales are copied.
#pragma once

#include "bucket/decode.h"
#include "frame/plan.h"

namespace gradwire {

// A range of a frame.
struct FrameRange {
    std::uint32_t frame, unused;
    std::uint64_t begin, end;
};

// A part of a frame: from this position and this entry on.
struct FramePart {
    std::uint64_t start, rank;
};

// A range is one part, or two where it begins within a group of entries that share scales. All pointers are
// to device memory.
struct SplitCall {
    const FrameRange* ranges = nullptr;
    std::uint32_t count = 0;                  // of ranges; of each there are two pieces, selections and parts
    Piece* pieces = nullptr;                  // see `part_of`
    Selection* selections = nullptr;
    FramePart* parts = nullptr;
    std::uint32_t* positions = nullptr;       // room for those of all frames
    const std::uint64_t* firsts = nullptr;    // where those of each frame begin
    std::uint8_t* slots = nullptr;            // room to write the parts, from a multiple of 16 on
    std::int64_t* table = nullptr;            // a row for each piece: see `OutcomeColumn`
};

// The piece of a part of so many elements, of a tensor whose frames are made by a codec.
Piece part_of(const Piece& codec, std::uint64_t numel);

// Bytes of all parts of a frame with so many entries and ranges, at most, each from a multiple of 16 on.
std::uint64_t longest_parts(const Quantize& quantize, std::uint64_t numel, std::uint64_t entries, std::uint64_t ranges);

// Writes the parts to `slots`, and what they are to the selections and the table. Their status is `skipped`
// where there is no part or a frame is not valid. `call` has one frame for each target. `table` and `scratch` are
// those of the plan for all pieces.
cudaError_t split(const Decode& call, const SplitCall& split, const WritePlan& plan, void* table, void* scratch,
                  cudaStream_t stream);

}  // namespace gradwire
