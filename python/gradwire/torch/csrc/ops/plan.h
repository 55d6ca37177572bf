// What lasts from step to step of a bucket: the shape of the work, and memory that is its own.
#pragma once

#include <memory>

#include "bucket/encode.h"
#include "ops/pieces.h"

namespace gradwire::ops {

// Hidden, as tensors of the stable ABI are.
struct __attribute__((visibility("hidden"))) Planned {
    std::vector<Piece> pieces;
    std::vector<std::int64_t> starts;
    EncodePlan plan;
    int device;
    Tensor kept, select_table, write_table, selections;
    const void* scratch;  // the memory that the table points to, which calls may share

    // That of the selection comes first.
    std::uint64_t scratch_bytes() const { return plan.select.scratch_bytes + plan.write.scratch_bytes(); }
};

// The plan of a number; a call that has it works on though it is forgotten meanwhile.
std::shared_ptr<Planned> planned_at(std::int64_t number);

// Has the plan work in this memory, in the order of the current stream.
void place(Planned& planned, const Tensor& scratch);

}  // namespace gradwire::ops
