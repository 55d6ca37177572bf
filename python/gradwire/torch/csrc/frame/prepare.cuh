// What is there before the first code is written: the coding of positions, and the scales of groups that no
// tile holds, from sums over them, a block for each chunk of a group. The last block of a frame adds up chunks.
#pragma once

#include "device/look_back.cuh"
#include "frame/measure.cuh"
#include "quantize/fit.cuh"

namespace gradwire {

constexpr unsigned fit_threads = 128, fit_values = 2048;

// Entries, from one on to before another.
struct Range {
    std::uint64_t begin, end;
};

__device__ inline Range entries_of(const Piece& piece, const Selection& selection, Groups groups, std::uint64_t group) {
    const std::uint64_t count = selection.count, from = group * groups.size, to = from + groups.size;
    if (groups.by == Grouping::whole || groups.by == Grouping::none) return {0, count};
    if (groups.by == Grouping::positions && !is_dense(piece))
        return {first_from(selection.positions, count, from), first_from(selection.positions, count, to)};
    return {from < count ? from : count, to < count ? to : count};
}

struct FitShared {
    float values[fit_values];
    double lanes[3][sum_lanes];
    Summary chunks[fit_threads];
    bool last;
};

// What some entries come to, in thread 0. All threads of a block call.
__device__ inline Summary sum_entries(Entries& entries, Basis basis, Range range, FitShared& shared) {
    // Three groups of sixteen threads add up one sum each, all others only help to read.
    const unsigned role = threadIdx.x / sum_lanes;
    constexpr unsigned at_once = 8;
    double sum = 0.0;
    std::uint32_t negatives = 0, peak = 0;
    for (std::uint64_t base = range.begin; base < range.end; base += fit_values) {
        const auto here = static_cast<unsigned>(min(range.end - base, static_cast<std::uint64_t>(fit_values)));
        for (unsigned first = threadIdx.x; first < here; first += at_once * fit_threads) {
            float values[at_once];
            entries.read(Batch<at_once, fit_threads>{base + first, base + here}, values);
#pragma unroll
            for (unsigned j = 0; j < at_once; ++j) {
                // What is not there is zero, which counts for nothing.
                if (first + j * fit_threads < here) shared.values[first + j * fit_threads] = values[j];
                negatives += values[j] < 0.0f;
                peak = max(peak, __float_as_uint(values[j]) & magnitude_bits);
            }
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
    if (threadIdx.x != 0) return {};
    for (auto& lanes : shared.lanes)
        for (unsigned width = sum_lanes / 2; width > 0; width /= 2)
            for (unsigned i = 0; i < width; ++i) lanes[i] = __dadd_rn(lanes[i], lanes[i + width]);
    return {shared.lanes[0][0], shared.lanes[1][0], shared.lanes[2][0], range.end - range.begin, negatives, peak};
}

// Puts down the scales of a group of which this is known.
__device__ inline void keep_scales(const Writing& writing, unsigned frame, Groups groups, std::uint64_t group,
                                   const Summary& sums) {
    if (groups.each == 0) {
        writing.states[frame].exponent = half::exponent_for(__uint_as_float(sums.peak));
        return;
    }
    float* const scales = writing.scales + writing.shapes[frame].scales + group * groups.each;
    fit_scales(writing.pieces[frame].quantize, sums, writing.selections[frame].magnitude, scales);
}

// The sums of chunks in order, in thread 0. All threads of a block call; `shared` has room for a chunk each.
__device__ inline Summary sum_chunks(const Summary* chunks, std::uint32_t count, Summary* shared) {
    Summary sums{};
    for (std::uint32_t base = 0; base < count; base += fit_threads) {
        const unsigned here = min(count - base, fit_threads);
        if (threadIdx.x < here) shared[threadIdx.x] = chunks[base + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            for (unsigned i = 0; i < here; ++i) sums.add(shared[i]);
        __syncthreads();
    }
    return sums;
}

// Share `block` of those that sum up.
__device__ inline void fit_chunk(const Writing& writing, std::uint64_t block, FitShared& shared) {
    const unsigned frame = segment_of(writing.fits, writing.frames, block);
    const Piece& piece = writing.pieces[frame];
    Selection& selection = writing.selections[frame];
    const std::uint32_t chunks = writing.shapes[frame].chunks;
    const std::uint64_t number = block - writing.fits[frame], group = number / chunks;
    const Groups groups = groups_of(piece.quantize, static_cast<std::uint32_t>(piece.numel));
    const std::uint64_t all_groups = summed_groups(groups, piece.numel, selection.count);
    writing.frame_turns[frame].await();
    if (writing.states[frame].nbytes == 0 || group >= all_groups) return;
    const Range all = entries_of(piece, selection, groups, group);
    const std::uint64_t begin = min(all.begin + number % chunks * chunk_values, all.end);
    Entries entries(piece, selection);
    const Range range{begin, min(begin + chunk_values, all.end)};
    const Summary chunk = sum_entries(entries, basis_of(piece.quantize), range, shared);
    if (chunks == 1) {
        if (threadIdx.x == 0) keep_scales(writing, frame, groups, group, chunk);
        return;
    }
    const Summary* const summaries = writing.summaries + writing.fits[frame];
    if (threadIdx.x == 0) {
        writing.summaries[block] = chunk;
        __threadfence();
        shared.last = atomicAdd(&writing.states[frame].fitted, 1u) + 1 == all_groups * chunks;
        // By the thread that saw the count, before the barrier hands on what it stands for.
        __threadfence();
    }
    __syncthreads();
    if (!shared.last) return;
    for (std::uint64_t each = 0; each < all_groups; ++each) {
        const Summary sums = sum_chunks(summaries + each * chunks, chunks, shared.chunks);
        if (threadIdx.x == 0) keep_scales(writing, frame, groups, each, sums);
    }
}

// Zeros, where bits of a word come from several threads: the share of tile `number` in a sparse frame.
__device__ inline void clear_share(const Writing& writing, std::uint64_t number) {
    const unsigned frame = segment_of(writing.tiles, writing.frames, number);
    const Piece& piece = writing.pieces[frame];
    if (is_dense(piece)) return;
    writing.frame_turns[frame].await();
    const std::uint64_t words = writing.states[frame].nbytes / 4, tile = number - writing.tiles[frame];
    const std::uint32_t tiles = writing.shapes[frame].tiles;
    const std::uint64_t begin = words * tile / tiles, end = words * (tile + 1) / tiles;
    auto* const out = reinterpret_cast<std::uint32_t*>(piece.frame);
    for (std::uint64_t i = begin + threadIdx.x; i < end; i += fit_threads) out[i] = 0;
}

}  // namespace gradwire
