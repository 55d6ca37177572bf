// All launches of an encode: those of the selection, and those that write.
#include "bucket/encode.h"

#include "bucket/commit.cuh"
#include "device/probe.h"
#include "device/segments.cuh"
#include "frame/write.cuh"

namespace gradwire {

namespace {

// Where values come from, and where what was not sent goes. Of a dense piece the first read may not have
// been: what it does is done as values are read.
struct BucketEntries {
    using Bucket = Selecting;

    const Tensor& tensor;
    Selection& selection;
    const float* values;
    bool nonzero = false;

    __device__ BucketEntries(const Bucket& bucket, unsigned index, const Piece& piece, Selection& own)
        : tensor(tensor_of_block(piece, bucket.divisor, bucket.desks[index].scale)),
          selection(own),
          values(own.values) {}

    template <unsigned Count, unsigned Step>
    __device__ void read(Batch<Count, Step> batch, float (&into)[Count]) {
        if (values != nullptr) {
            batch.read(values, into);
            return;
        }
        const Added added(tensor, batch, nonzero);
        if (tensor.next_moment != nullptr) batch.write(added.moments, tensor.next_moment);
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) into[i] = added.sums[i];
    }

    __device__ void settle(std::uint32_t position, float value, float decoded) const {
        tensor.settle(position, value, decoded);
    }

    __device__ static void end(const Bucket& bucket) {
        commit(bucket.pieces, bucket.selections, bucket.count);
        __syncthreads();
        tabulate(bucket.selections, bucket.count, bucket.table);
    }

    __device__ void finish() {
        if (__any_sync(all_lanes, nonzero) && lane() == 0) atomicExch(&selection.zero, 0u);
    }
};

const Kernels kernels{prepare_frames<BucketEntries>, code_tiles<BucketEntries>, seal_parts<BucketEntries>};

}  // namespace

EncodePlan plan_encode(const Piece* all, unsigned count, unsigned blocks) {
    EncodePlan plan;
    plan.select = plan_select(all, count, blocks);
    plan.write = plan_write(all, plan.select.most_entries.data(), count);
    return plan;
}

cudaError_t launch_encode(const EncodePlan& plan, const Piece* all, Selection* selections, const EncodeMemory& memory,
                          float divisor, bool trims, std::int64_t* table, cudaStream_t stream) {
    if (plan.select.pieces == 0) return cudaSuccess;
    const Selecting bucket =
        selecting_in(plan.select, all, selections, memory.select_table, divisor, trims, table);
    GRADWIRE_TRY(launch_select(plan.select, bucket, stream));
    return launch_write<BucketEntries>(plan.write, all, selections, memory.write_table, memory.write_scratch, bucket,
                                       stream);
}

}  // namespace gradwire
