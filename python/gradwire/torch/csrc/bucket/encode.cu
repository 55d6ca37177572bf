// All launches of an encode: those of the selection, and those that write.
#include "bucket/encode.h"

#include "bucket/commit.cuh"
#include "device/probe.h"
#include "device/segments.cuh"
#include "frame/write.cuh"

namespace gradwire {

namespace {

// Writes the sums over memories that have one buffer, now that nothing can fail any more. Of a dense
// frame they are written while it is. Chunk `at` of all.
__device__ void overwrite(const Selecting& bucket, std::uint64_t at) {
    const unsigned index = segment_of(bucket.first_chunk, bucket.count, at);
    const Piece& piece = bucket.pieces[index];
    if (!is_in_place(piece) || is_dense(piece) || is_left_out(bucket.selections, index)) return;
    const Tensor& tensor = tensor_of_block(piece, bucket.divisor, bucket.desks[index].scale);
    const std::uint64_t begin = (at - bucket.first_chunk[index]) * chunk_entries;
    const std::uint64_t end = tensor.numel - begin < chunk_entries ? tensor.numel : begin + chunk_entries;
    constexpr unsigned at_once = 8;
    for (std::uint64_t first = begin + threadIdx.x; first < end; first += at_once * fit_threads) {
        const Batch<at_once, fit_threads> batch{first, end};
        bool nonzero = false;
        Added(tensor, batch, nonzero).keep(tensor, batch);
    }
}

// Where values come from, and where what was not sent goes. Of a dense piece the first read may not have
// been: what it does is done as values are read.
struct BucketEntries {
    using Bucket = Selecting;

    const Tensor& tensor;
    Selection& selection;
    const float* values;
    bool later, nonzero = false;

    __device__ BucketEntries(const Bucket& bucket, unsigned index, const Piece& piece, Selection& own)
        : tensor(tensor_of_block(piece, bucket.divisor, bucket.desks[index].scale)),
          selection(own),
          values(own.values),
          later(bucket.later) {}

    template <unsigned Count, unsigned Step>
    __device__ void read(Batch<Count, Step> batch, float (&into)[Count]) {
        if (values != nullptr) {
            batch.read(values, into);
            return;
        }
        const Added added(tensor, batch, nonzero);
        if (tensor.next_moment != nullptr && !tensor.in_place)
            batch.write(added.moments, tensor.next_moment);
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) into[i] = added.sums[i];
    }

    __device__ void settle(std::uint32_t position, float value, float decoded) const {
        if (later) return;
        // Written over only now: the entry may have been loaded more than once.
        bool unused = false;
        if (values == nullptr && tensor.in_place && tensor.next_moment != nullptr)
            tensor.next_moment[position] = Added(tensor, One{position, position + 1ull}, unused).moments[0];
        tensor.settle(position, value, decoded);
    }

    // Once for each chunk.
    __device__ static void prepare(const Bucket& bucket, std::uint64_t chunk) { overwrite(bucket, chunk); }

    __device__ static void end(const Bucket& bucket) {
        commit(bucket.pieces, bucket.selections, bucket.count, bucket.later);
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
                          float divisor, bool trims, bool later, std::int64_t* table, cudaStream_t stream) {
    if (plan.select.pieces == 0) return cudaSuccess;
    const Selecting bucket =
        selecting_in(plan.select, all, selections, memory.select_table, divisor, trims, later, table);
    GRADWIRE_TRY(launch_select(plan.select, bucket, stream));
    const std::uint64_t overwritten = plan.select.overwrites && !later ? plan.select.chunks : 0;
    return launch_write<BucketEntries>(plan.write, all, selections, memory.write_table, memory.write_scratch, bucket,
                                       overwritten, stream);
}

}  // namespace gradwire
