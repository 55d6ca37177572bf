// The first read of all tensors, a block for each chunk: sums, what memories become, what was asked for.
#include "bucket/select.cuh"
#include "device/probe.h"
#include "device/segments.cuh"
#include "frame/length.cuh"

namespace gradwire {

namespace {

// The sums, which the memory becomes unless it has one buffer.
struct KeptEntry {
    const Tensor& tensor;
    bool& nonzero;

    __device__ void read(TileBatch batch, float (&values)[words_of_warp]) const {
        const Added added(tensor, batch, nonzero);
        if (!tensor.in_place) added.keep(tensor, batch);
#pragma unroll
        for (unsigned i = 0; i < words_of_warp; ++i) values[i] = added.sums[i];
    }
};

__global__ void __launch_bounds__(team_threads, 4) read(Selecting bucket) {
    const std::uint64_t at = blockIdx.x;
    const unsigned index = segment_of(bucket.first_chunk, bucket.count, at);
    const Piece& piece = bucket.pieces[index];
    Desk& desk = bucket.desks[index];
    const std::uint64_t chunk = at - bucket.first_chunk[index];
    // No team waits now: the numbers of those that have come would go beyond their range one day.
    if (chunk == 0 && threadIdx.x == 0) *desk.arrivals = 0;
    // Every entry of a dense piece is read when its frame is written, and what is not finite is found there.
    if (!is_supported(piece) || (is_dense(piece) && !bucket.overwrites)) return;
    const Tensor& tensor = tensor_of_block(piece, bucket.divisor, desk.scale);
    const Request request = desk.request;
    bool nonzero = false;
    const ChunkFound found = read_chunk(desk, tensor.numel, chunk, request, KeptEntry{tensor, nonzero});
    const bool any = __syncthreads_or(nonzero);
    if (threadIdx.x == 0) {
        desk.marked[chunk] = found.marked;
        atomicMax(&desk.peak, found.peak);
        if (any) atomicOr(&desk.any, 1u);
    }
    // Of a gradient whose norm is clipped, what is not finite was counted before.
    if (found.peak < not_finite || !desk.reads || piece.memory.clips) return;
    const std::uint64_t begin = chunk * chunk_entries, end = begin + chunk_entries;
    count_bad(desk, begin, end < tensor.numel ? end : tensor.numel, WrittenEntry{tensor});
}

const Kernels kernels{read};

}  // namespace

cudaError_t launch_read(const SelectPlan& plan, const Selecting& bucket, cudaStream_t stream) {
    return launch(read, {plan.chunks}, team_threads, stream, bucket);
}

}  // namespace gradwire
