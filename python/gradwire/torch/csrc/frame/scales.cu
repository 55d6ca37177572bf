// The scales of groups that no tile holds, from the sums over their chunks.
#include "frame/fit.cuh"

namespace gradwire {

namespace {

__global__ void fit_scales_of_frames(Writing writing) {
    struct Shared {
        Summary chunks[write_threads];
    };
    GRADWIRE_SHARED(Shared, shared);
    const unsigned frame = blockIdx.x;
    const Piece& piece = writing.pieces[frame];
    const Selection& selection = writing.selections[frame];
    const FrameShape& shape = writing.shapes[frame];
    if (writing.states[frame].nbytes == 0 || shape.chunks == 0) return;
    const Groups groups = groups_of(piece.quantize, static_cast<std::uint32_t>(piece.numel));
    const std::uint64_t number = summed_groups(piece, groups, selection.count);
    const Summary* const summaries = writing.summaries + writing.fits[frame];
    const auto keep = [&](std::uint64_t group, const Summary& sums) {
        if (groups.each == 0)
            writing.states[frame].exponent = half::exponent_for(__uint_as_float(sums.peak));
        else
            fit_scales(piece.quantize, sums, selection.magnitude, writing.scales + shape.scales + group * groups.each);
    };
    if (shape.chunks == 1) {
        for (std::uint64_t group = threadIdx.x; group < number; group += write_threads) {
            Summary sums{};
            sums.add(summaries[group]);
            keep(group, sums);
        }
        return;
    }
    for (std::uint64_t group = 0; group < number; ++group) {
        Summary sums{};
        for (std::uint32_t base = 0; base < shape.chunks; base += write_threads) {
            const unsigned here = min(shape.chunks - base, write_threads);
            if (threadIdx.x < here) shared.chunks[threadIdx.x] = summaries[group * shape.chunks + base + threadIdx.x];
            __syncthreads();
            if (threadIdx.x == 0)
                for (unsigned i = 0; i < here; ++i) sums.add(shared.chunks[i]);
            __syncthreads();
        }
        if (threadIdx.x == 0) keep(group, sums);
    }
}

}  // namespace

cudaError_t launch_scales(const WritePlan& plan, const Writing& writing, cudaStream_t stream) {
    return launch(fit_scales_of_frames, {plan.frames()}, write_threads, stream, writing);
}

}  // namespace gradwire
