// The first read of all tensors, a block for each chunk: sums, what memories become, what was asked for.
#include "bucket/select.cuh"
#include "device/probe.h"
#include "device/segments.cuh"
#include "frame/header.cuh"

namespace gradwire {

namespace {

// The sums, which the memory becomes.
struct KeptEntry {
    const Tensor& tensor;
    bool& nonzero;

    __device__ float operator()(std::uint64_t i) const { return written_at(tensor, i); }

    template <class Batch>
    __device__ void read(Batch batch, float (&values)[Batch::count]) const {
        const Added<Batch> added(tensor, batch, nonzero);
        added.keep(tensor, batch);
#pragma unroll
        for (unsigned i = 0; i < Batch::count; ++i) values[i] = added.sums[i];
    }
};

// Whether a chunk is one of a tensor that `read_known` takes.
__device__ bool is_known(const Tensor& tensor, const Chunk& chunk) {
    if (!chunk.is_whole() || tensor.narrow || tensor.divisor != 1.0f) return false;
    if (chunk.request.located && tensor.dtype != Dtype::f32) return false;
    return is_aligned(tensor.gradient, tensor.dtype == Dtype::f64 ? 8 : tensor.dtype == Dtype::f32 ? 4 : 2) &&
           is_aligned(tensor.residual, 4) && is_aligned(tensor.next, 4) && is_aligned(tensor.moment, 4) &&
           is_aligned(tensor.next_moment, 4);
}

// Reads a chunk of a tensor of which this is known when the code is compiled. Sums are taken of float32 only,
// so that there is not so much code.
template <Dtype dtype, MemoryKind kind, bool sums>
__device__ GRADWIRE_APART ChunkFound read_known(const Desk& desk, const Tensor& tensor, const Chunk& chunk, bool& any) {
    Tensor known = tensor;
    known.dtype = dtype;
    known.kind = kind;
    known.narrow = false;
    known.divisor = 1.0f;
    bool nonzero = false;
    const KeptEntry entries{known, nonzero};
    const ChunkFound found = sums ? read_tiles(desk, chunk, entries, whole_quads_of_lane)
                                  : read_rows(desk, chunk, entries, whole_quads_of_lane);
    any = nonzero;
    return found;
}

template <Dtype dtype, MemoryKind kind>
__device__ ChunkFound read_either(const Desk& desk, const Tensor& tensor, const Chunk& chunk, bool& any) {
    if constexpr (dtype == Dtype::f32)
        if (chunk.request.located) return read_known<dtype, kind, true>(desk, tensor, chunk, any);
    return read_known<dtype, kind, false>(desk, tensor, chunk, any);
}

template <Dtype dtype>
__device__ ChunkFound read_dtype(const Desk& desk, const Tensor& tensor, const Chunk& chunk, bool& any) {
    switch (tensor.kind) {
        case MemoryKind::none: return read_either<dtype, MemoryKind::none>(desk, tensor, chunk, any);
        case MemoryKind::residual: return read_either<dtype, MemoryKind::residual>(desk, tensor, chunk, any);
        case MemoryKind::low_pass: return read_either<dtype, MemoryKind::low_pass>(desk, tensor, chunk, any);
        case MemoryKind::momentum: return read_either<dtype, MemoryKind::momentum>(desk, tensor, chunk, any);
        default: return read_either<dtype, MemoryKind::adam>(desk, tensor, chunk, any);
    }
}

// Reads a chunk, and tells whether an entry of the gradient is not zero.
__device__ ChunkFound read_kept(const Desk& desk, const Tensor& tensor, const Chunk& chunk, bool& any) {
    if (!is_known(tensor, chunk)) return read_chunk(desk, chunk, KeptEntry{tensor, any});
    switch (tensor.dtype) {
        case Dtype::f32: return read_dtype<Dtype::f32>(desk, tensor, chunk, any);
        case Dtype::f64: return read_dtype<Dtype::f64>(desk, tensor, chunk, any);
        case Dtype::f16: return read_dtype<Dtype::f16>(desk, tensor, chunk, any);
        default: return read_dtype<Dtype::bf16>(desk, tensor, chunk, any);
    }
}

__global__ void __launch_bounds__(team_threads, 4) read(Selecting bucket) {
    const std::uint64_t at = blockIdx.x;
    const unsigned index = segment_of(bucket.first_chunk, bucket.count, at);
    const Piece& piece = bucket.pieces[index];
    Desk& desk = bucket.desks[index];
    const std::uint64_t chunk = at - bucket.first_chunk[index];
    // No team waits now: the numbers of those that have come would go beyond their range one day.
    if (chunk == 0 && threadIdx.x == 0) *desk.arrivals = 0;
    // Every entry of a dense piece is read when its frame is written, and what is not finite is found there.
    if (!is_supported(piece) || is_dense(piece)) return;
    const Tensor& tensor = tensor_of_block(piece, bucket.divisor, desk.scale);
    bool nonzero = false;
    const Chunk asked(tensor.numel, chunk, desk.request);
    const ChunkFound found = read_kept(desk, tensor, asked, nonzero);
    const bool any = __syncthreads_or(nonzero);
    bool last = false;
    if (threadIdx.x == 0) {
        desk.marked[chunk] = found.marked;
        atomicMax(&desk.peak, found.peak);
        if (any) atomicOr(&desk.any, 1u);
        if (desk.request.located) {
            __threadfence();
            last = atomicAdd(&desk.finished, 1u) + 1 == pieces(tensor.numel, chunk_entries);
            __threadfence();
        }
    }
    // What comes after it would otherwise add up in each of its blocks.
    if (__syncthreads_or(last)) add_parts(desk, pieces(tensor.numel, chunk_entries));
    // Of a gradient whose norm is clipped, what is not finite was counted before.
    if (found.peak < not_finite || !desk.reads || piece.memory.clips) return;
    count_bad(desk, asked, WrittenEntry{tensor});
}

const Kernels kernels{read};

}  // namespace

cudaError_t launch_read(const SelectPlan& plan, const Selecting& bucket, cudaStream_t stream) {
    return launch(read, plan.chunks, team_threads, stream, bucket);
}

}  // namespace gradwire
