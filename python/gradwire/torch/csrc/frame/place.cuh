// The grids of groups of affine that no tile holds, which follow from the exponent: a block for each chunk
// of a group. Where groups have several, the last block of a frame adds up their errors.
#pragma once

#include "frame/prepare.cuh"
#include "quantize/affine_fit.cuh"

namespace gradwire {

constexpr unsigned place_warps = fit_threads / warp_threads, place_values = place_warps * affine::error_values;

struct PlaceShared {
    float values[place_values];
    Summary chunks[fit_threads], sums;
    bool last;
};

// What a block that places grids works on.
struct Placing {
    const Piece& piece;
    const Selection& selection;
    Groups groups;
    std::uint32_t chunks;
    float power;
    const Summary* summaries;  // of all chunks
    float *errors, *scales;    // by parts of groups, by groups
};

// What this lane tries for a group. All threads of a block call.
__device__ inline affine::Candidate candidate_of(const Placing& placing, std::uint64_t group, PlaceShared& shared) {
    const Summary sums = sum_chunks(placing.summaries + group * placing.chunks, placing.chunks, shared.chunks);
    if (threadIdx.x == 0) shared.sums = sums;
    __syncthreads();
    const unsigned number = min(lane(), affine::grids - 1);
    return affine::candidate(placing.piece.quantize, shared.sums, placing.power, number);
}

__device__ inline float* errors_of_group(const Placing& placing, std::uint64_t group) {
    return placing.errors + group * placing.chunks * affine::error_parts(placing.groups.size) * affine::grids;
}

// Adds up the squared errors of a chunk on the grid of each lane.
template <class Entries>
__device__ void compare(Entries& entries, const Placing& placing, affine::Cells cells, Range range, float* errors,
                        PlaceShared& shared) {
    constexpr unsigned at_once = 8;
    for (std::uint64_t base = range.begin; base < range.end; base += place_values) {
        const auto here = static_cast<unsigned>(min(range.end - base, static_cast<std::uint64_t>(place_values)));
        for (unsigned first = threadIdx.x; first < here; first += at_once * fit_threads) {
            float values[at_once];
            entries.read(Batch<at_once, fit_threads>{base + first, base + here}, values);
#pragma unroll
            for (unsigned j = 0; j < at_once; ++j)
                if (first + j * fit_threads < here) shared.values[first + j * fit_threads] = values[j];
        }
        __syncthreads();
        const unsigned from = warp() * affine::error_values;
        if (from < here) {
            const float* const own = shared.values + from;
            const float sum = affine::errors_of(cells, placing.piece.quantize.bits, placing.power,
                                                min(here - from, affine::error_values), [=](unsigned i) { return own[i]; });
            if (lane() < affine::grids) errors[warp() * affine::grids + lane()] = sum;
        }
        errors += place_warps * affine::grids;
        __syncthreads();
    }
}

// Puts down the scale of a group. By all lanes of a warp.
__device__ inline void keep_scale(const Placing& placing, std::uint64_t group, affine::Candidate own) {
    affine::Cells cells = own.cells;
    if (own.compared) {
        const Range all = entries_of(placing.piece, placing.selection, placing.groups, group);
        const std::uint64_t parts = pieces(all.end - all.begin, affine::error_values);
        const float* const errors = errors_of_group(placing, group) + min(lane(), affine::grids - 1);
        double error = 0.0;
        for (std::uint64_t part = 0; part < parts; ++part) error = affine::add_errors(error, errors[part * affine::grids], cells);
        cells = affine::best_of(cells, error);
    }
    if (lane() == 0) placing.scales[group] = affine::scale_of(cells);
}

// Share `block` of those that sum up, which places grids after that.
template <class Entries>
__device__ void place_chunk(const Writing& writing, const typename Entries::Bucket& bucket, std::uint64_t block,
                            PlaceShared& shared) {
    const unsigned frame = segment_of(writing.fits, writing.frames, block);
    const Piece& piece = writing.pieces[frame];
    Selection& selection = writing.selections[frame];
    const FrameShape& shape = writing.shapes[frame];
    FrameState& state = writing.states[frame];
    if (!is_placed(piece.quantize, shape.held)) return;
    const FrameTurns& turns = writing.frame_turns[frame];
    turns.await(FrameTurns::planned);
    if (state.nbytes == 0) return;
    const Groups groups = groups_of(piece.quantize, static_cast<std::uint32_t>(piece.numel));
    const std::uint64_t all_groups = number_of(groups, piece.numel, selection.count);
    const std::uint64_t number = block - writing.fits[frame], group = number / shape.chunks, chunk = number % shape.chunks;
    if (group >= all_groups) return;
    turns.await(FrameTurns::fitted);
    const Placing placing{piece,        selection, groups,
                          shape.chunks, power::of(state.exponent, 127), writing.summaries + writing.fits[frame],
                          writing.errors + shape.errors, writing.scales + shape.scales};
    const affine::Candidate own = candidate_of(placing, group, shared);
    if (own.compared) {
        const Range all = entries_of(piece, selection, groups, group);
        const std::uint64_t begin = min(all.begin + chunk * chunk_values, all.end);
        Entries entries(bucket, frame, piece, selection);
        float* const errors = errors_of_group(placing, group) + chunk * affine::error_parts(groups.size) * affine::grids;
        compare(entries, placing, own.cells, {begin, min(begin + chunk_values, all.end)}, errors, shared);
    }
    if (shape.chunks == 1) {
        if (warp() == 0) keep_scale(placing, group, own);
        return;
    }
    // Each thread has written errors.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = atomicAdd(&state.placed, 1u) + 1 == all_groups * shape.chunks;
        __threadfence();
    }
    __syncthreads();
    if (!shared.last) return;
    for (std::uint64_t each = 0; each < all_groups; ++each) {
        const affine::Candidate its = candidate_of(placing, each, shared);
        if (warp() == 0) keep_scale(placing, each, its);
        __syncthreads();
    }
}

// What has to be there before the first code is written: first blocks measure, the next ones sum up, place
// grids, and clear, as soon as what they wait for is there.
struct Shares {
    std::uint64_t measures, fits, places, clears;
    __host__ __device__ std::uint64_t all() const { return measures + fits + places + clears; }
};

template <class Entries>
__global__ void prepare_frames(Writing writing, typename Entries::Bucket bucket, Shares shares) {
    union Shared {
        FitShared fit;
        PlaceShared place;
    };
    GRADWIRE_SHARED(Shared, shared);
    std::uint64_t share = take_ticket(&writing.turns->ticket);
    if (share < shares.measures) {
        // Where nothing is measured, a block for each frame.
        measure_tile<fit_threads>(writing, shares.measures == writing.frames ? writing.tiles[share] : share);
    } else if ((share -= shares.measures) < shares.fits) {
        fit_chunk<Entries>(writing, bucket, share, shared.fit);
    } else if ((share -= shares.fits) < shares.places) {
        place_chunk<Entries>(writing, bucket, share, shared.place);
    } else {
        clear_share(writing, share - shares.places);
    }
}

}  // namespace gradwire
