// Sums over groups of scales that no tile holds, a block for each chunk of a group.
#pragma once

#include "frame/writing.cuh"
#include "quantize/fit.cuh"

namespace gradwire {

constexpr unsigned fit_threads = 128, fit_values = 2048;

// How many of these ascending positions are below `end`.
__device__ inline std::uint64_t positions_below(const std::uint32_t* positions, std::uint64_t count,
                                                std::uint64_t end) {
    std::uint64_t low = 0, high = count;
    while (low < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (positions[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Entries, from one on to before another.
struct Range {
    std::uint64_t begin, end;
};

__device__ inline Range entries_of(const Piece& piece, const Selection& selection, Groups groups, std::uint64_t group) {
    const std::uint64_t count = selection.count, from = group * groups.size, to = from + groups.size;
    if (groups.by == Grouping::whole || groups.by == Grouping::none) return {0, count};
    if (groups.by == Grouping::positions && !is_dense(piece))
        return {positions_below(selection.positions, count, from), positions_below(selection.positions, count, to)};
    return {from < count ? from : count, to < count ? to : count};
}

// Where summaries of a frame are kept by groups: scaled float16 has one of all its values.
__device__ inline std::uint64_t summed_groups(const Piece& piece, Groups groups, std::uint64_t count) {
    return groups.by == Grouping::none ? 1 : number_of(groups, piece.numel, count);
}

template <class Policy>
__global__ void fit_chunks(Writing writing) {
    struct Shared {
        float values[fit_values];
        double lanes[3][sum_lanes];
    };
    GRADWIRE_SHARED(Shared, shared);
    const unsigned frame = segment_of(writing.fits, writing.frames, static_cast<std::uint64_t>(blockIdx.x));
    const Piece& piece = writing.pieces[frame];
    const Selection& selection = writing.selections[frame];
    const std::uint32_t chunks = writing.shapes[frame].chunks;
    const std::uint64_t number = blockIdx.x - writing.fits[frame], group = number / chunks;
    const Groups groups = groups_of(piece.quantize, static_cast<std::uint32_t>(piece.numel));
    if (writing.states[frame].nbytes == 0 || group >= summed_groups(piece, groups, selection.count)) return;
    const Range all = entries_of(piece, selection, groups, group);
    const std::uint64_t begin = min(all.begin + number % chunks * chunk_values, all.end);
    const std::uint64_t end = min(begin + chunk_values, all.end);

    // Three groups of sixteen threads add up one sum each, all others only help to read.
    const Basis basis = basis_of(piece.quantize);
    const unsigned role = threadIdx.x / sum_lanes;
    double sum = 0.0;
    std::uint32_t negatives = 0, peak = 0;
    for (std::uint64_t base = begin; base < end; base += fit_values) {
        const auto here = static_cast<unsigned>(min(end - base, static_cast<std::uint64_t>(fit_values)));
        for (unsigned i = threadIdx.x; i < here; i += fit_threads) {
            const float x = Policy::load(piece, selection, static_cast<std::uint32_t>(base + i));
            shared.values[i] = x;
            negatives += x < 0.0f;
            peak = max(peak, __float_as_uint(x) & magnitude_bits);
        }
        __syncthreads();
        if (role < 2 ? has_sides(basis) : role == 2 && has_squares(basis)) {
            for (unsigned i = threadIdx.x % sum_lanes; i < here; i += sum_lanes) {
                const double x = shared.values[i];
                const double part = role == 2 ? __dmul_rn(x, x) : (x < 0.0) == (role == 1) ? x : 0.0;
                sum = __dadd_rn(sum, part);
            }
        }
        __syncthreads();
    }
    if (role < 3) shared.lanes[role][threadIdx.x % sum_lanes] = sum;
    negatives = block_reduce<fit_threads>(negatives, Sum{});
    peak = block_reduce<fit_threads>(peak, Greatest{});
    if (threadIdx.x != 0) return;
    for (auto& lanes : shared.lanes)
        for (unsigned width = sum_lanes / 2; width > 0; width /= 2)
            for (unsigned i = 0; i < width; ++i) lanes[i] = __dadd_rn(lanes[i], lanes[i + width]);
    writing.summaries[blockIdx.x] = {shared.lanes[0][0], shared.lanes[1][0], shared.lanes[2][0],
                                     end - begin,        negatives,          peak};
}

}  // namespace gradwire
