// All launches of an encode: those of the selection, and those that write.
#include "bucket/encode.h"

#include "bucket/select.cuh"

namespace gradwire {

EncodePlan plan_encode(const Piece* all, unsigned count, unsigned blocks) {
    EncodePlan plan;
    plan.select = plan_select(all, count, blocks);
    plan.write = plan_write(all, plan.select.most_entries.data(), count);
    return plan;
}

cudaError_t launch_encode(const EncodePlan& plan, const Piece* all, Selection* selections, const EncodeMemory& memory,
                          float divisor, bool trims, std::int64_t* table, cudaStream_t stream) {
    if (plan.select.pieces == 0) return cudaSuccess;
    const Selecting bucket = selecting_in(plan.select, all, selections, memory.select_table, divisor, trims);
    GRADWIRE_TRY(launch_select(plan.select, bucket, stream));
    return launch_write(plan.write, all, selections, memory.write_table, memory.write_scratch, table, stream);
}

}  // namespace gradwire
