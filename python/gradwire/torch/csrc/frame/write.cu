// Writes the frames of a bucket: three launches, whatever the number of tensors.
//
// | launch | a block | what it does |
// |---|---|---|
// | prepare | a tile of entries | what the choice of a coding depends on; the last of a frame plans it |
// | | a chunk of a group, a tile | scales of groups that no tile holds; zeros |
// | code | a tile | positions, scales of the groups that it holds, codes, header |
// | seal | a part of the bytes | the checksum; the last block of all ends the bucket |
#include "device/probe.h"
#include "frame/prepare.cuh"
#include "frame/seal.cuh"
#include "quantize/codebook_fit.cuh"

namespace gradwire {

namespace {

constexpr unsigned code_blocks = 4;  // of a multiprocessor, so that memory has enough to do

struct CodeShared {
    Fields<most_tile> fields;
    float scales[most_tile_scales];
    codebook::Room codebook;
};

// Fits the scales of the groups of a tile, whose values are in `fields`.
__device__ void fit_tile(const Piece& piece, const Selection& selection, Groups groups, unsigned n,
                         CodeShared& shared) {
    const unsigned number = static_cast<unsigned>(pieces(n, groups.size));
    const auto value = [&](unsigned i) { return __uint_as_float(shared.fields[i]); };
    const Basis basis = basis_of(piece.quantize);
    if (basis == Basis::values) {
        for (unsigned group = 0; group < number; ++group) {
            const unsigned begin = group * groups.size, len = min(n - begin, groups.size);
            codebook::fit<write_threads>(
                shared.codebook, len, groups.each, [&](unsigned i) { return value(begin + i); },
                shared.scales + group * groups.each);
        }
        return;
    }
    // A half of a warp for each group.
    constexpr unsigned at_once = write_threads / sum_lanes;
    for (unsigned base = warp() * 2; base < number; base += at_once) {
        const unsigned group = base + lane() / sum_lanes;
        const unsigned begin = min(group * groups.size, n), end = min(begin + groups.size, n);
        Lane sums;
        for (unsigned i = begin + lane() % sum_lanes; i < end; i += sum_lanes)
            sums.add(value(i), has_sides(basis), has_squares(basis));
        const Summary summary = reduce_lanes(sums, end - begin);
        if (lane() % sum_lanes == 0 && group < number)
            fit_scales(piece.quantize, summary, selection.magnitude, shared.scales + group * groups.each);
    }
    __syncthreads();
}

// Loads the values of a tile, many at a time, into `fields`; the bits of the largest magnitude that the
// warp has seen.
__device__ std::uint32_t load_tile(Entries& entries, const Tile& tile, CodeShared& shared) {
    constexpr unsigned at_once = 8;
    std::uint32_t peak = 0;
    for (unsigned base = threadIdx.x; base < tile.n; base += at_once * write_threads) {
        float values[at_once];
        entries.read(Batch<at_once, write_threads>{tile.begin + base, tile.begin + tile.n}, values);
#pragma unroll
        for (unsigned j = 0; j < at_once; ++j) {
            const unsigned i = base + j * write_threads;
            const std::uint32_t bits = __float_as_uint(values[j]);
            if (i < tile.n) shared.fields[i] = bits;
            peak = max(peak, bits & magnitude_bits);
        }
    }
    return warp_reduce(peak, Greatest{});
}

// Tells what of a dense tile that this thread has loaded is not finite.
__device__ void count_not_finite(const Tile& tile, const CodeShared& shared, Selection& selection) {
    NotFinite bad;
    for (unsigned i = threadIdx.x; i < tile.n; i += write_threads)
        bad.add(shared.fields[i] & magnitude_bits, tile.begin + i);
    bad.report(reinterpret_cast<unsigned long long&>(selection.bad_count),
               reinterpret_cast<unsigned long long&>(selection.bad_first));
}

// First blocks measure, the next ones sum up, and clear, as soon as what they wait for is there.
struct Shares {
    std::uint64_t measures, fits, clears;
};

__global__ void prepare_frames(Writing writing, Shares shares) {
    GRADWIRE_SHARED(FitShared, shared);
    std::uint64_t share = take_ticket(&writing.turns->ticket);
    if (share < shares.measures) {
        // Where nothing is measured, a block for each frame.
        measure_tile<fit_threads>(writing, shares.measures == writing.frames ? writing.tiles[share] : share);
    } else if ((share -= shares.measures) < shares.fits) {
        fit_chunk(writing, share, shared);
    } else {
        clear_share(writing, share - shares.fits);
    }
}

// Writes all of a frame but its checksum, a block for each tile of its entries.
//
// The values of a dense frame need not be looked at before. Its `selection.peak` is raised to the
// largest magnitude; if that is not finite, `bad_count` and `bad_first` tell how many are not, and
// what was written means nothing.
__global__ void __launch_bounds__(write_threads, code_blocks) code_tiles(Writing writing) {
    GRADWIRE_SHARED(CodeShared, shared);
    const Tile tile = tile_of(writing, blockIdx.x);
    const Piece& piece = writing.pieces[tile.frame];
    Selection& selection = writing.selections[tile.frame];
    const FrameShape& shape = writing.shapes[tile.frame];
    FrameState& state = writing.states[tile.frame];
    if (state.nbytes == 0) return;
    const bool dense = is_dense(piece), near = shape.held;
    const float* const far_scales = writing.scales + shape.scales;
    // What was divided is float32.
    const Dtype dtype = selection.divisor == 1.0f ? piece.dtype : Dtype::f32;
    write_sections(writing, tile, dtype, state.exponent, !near,
                   [&](std::uint64_t i) { return __float_as_uint(far_scales[i]); }, shared.fields);
    if (tile.n == 0) return;

    Entries entries(piece, selection);
    const std::uint32_t peak = load_tile(entries, tile, shared);
    if (dense && lane() == 0) atomicMax(&selection.peak, peak);
    if (dense && peak >= not_finite) count_not_finite(tile, shared, selection);
    __syncthreads();
    const auto numel = static_cast<std::uint32_t>(piece.numel);
    const std::uint64_t values_at = header_len + state.coded.len;
    const Edges edges = edges_of(piece, state);
    const Groups groups = groups_of(piece.quantize, numel);
    if (near) {
        fit_tile(piece, selection, groups, tile.n, shared);
        const std::uint64_t scales_at = values_at + prologue_of(piece.quantize, numel).len;
        const std::uint64_t first = tile.begin / groups.size * groups.each;
        const auto fitted = static_cast<unsigned>(pieces(tile.n, groups.size) * groups.each);
        write_fields<write_threads, 32>(piece.frame, (scales_at + 4 * first) * 8, fitted, 32, edges,
                                        [&](unsigned i) { return __float_as_uint(shared.scales[i]); });
    }
    const Coder coder{piece.quantize, state.exponent, selection.rounding_key};
    with_quantizer(piece.quantize.kind, [&](auto quantizer) {
        using Own = decltype(quantizer);
        for (unsigned i = threadIdx.x; i < tile.n; i += write_threads) {
            const auto rank = static_cast<std::uint32_t>(tile.begin + i);
            const std::uint32_t position = dense ? rank : selection.positions[rank];
            const float* scales = near ? shared.scales + i / groups.size * groups.each : far_scales;
            if (!near && groups.by == Grouping::ranks) scales += static_cast<std::uint64_t>(rank / groups.size) * groups.each;
            if (!near && groups.by == Grouping::positions)
                scales += static_cast<std::uint64_t>(position / groups.size) * groups.each;
            const float value = __uint_as_float(shared.fields[i]);
            const std::uint32_t code = Own::code(coder, scales, rank, value);
            shared.fields[i] = code;
            entries.tensor.settle(position, value, Own::value(coder, scales, code));
        }
    });
    __syncthreads();
    const unsigned bits = code_bits(piece.quantize);
    const std::uint64_t codes_at = values_at + overhead(piece.quantize, numel, selection.count);
    write_codes<write_threads>(piece.frame, codes_at * 8 + tile.begin * bits, tile.n, bits, edges,
                               [&](unsigned i) { return shared.fields[i]; });
    entries.finish();
}

const Kernels kernels{prepare_frames, code_tiles, seal_parts<true>};

}  // namespace

cudaError_t launch_write(const WritePlan& plan, const Piece* all, Selection* selections, void* table, void* scratch,
                         std::int64_t* outcomes, cudaStream_t stream) {
    const Writing writing = writing_in(plan, all, selections, table, scratch);
    const std::uint64_t tiles = plan.tiles.back(), parts = plan.parts.back();
    const Shares shares{plan.measures ? tiles : plan.frames(), plan.fits.back(), plan.sparse ? tiles : 0};
    const std::uint64_t all_shares = shares.measures + shares.fits + shares.clears;
    GRADWIRE_TRY(launch(prepare_frames, all_shares, fit_threads, stream, writing, shares));
    GRADWIRE_TRY(launch(code_tiles, tiles, write_threads, stream, writing));
    return launch(seal_parts<true>, parts > 0 ? parts : 1, checksum::threads, stream, writing, outcomes);
}

}  // namespace gradwire
