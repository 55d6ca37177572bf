// Writes all of a frame but its checksum, a block for each tile of its entries.
#pragma once

#include "frame/writing.cuh"
#include "quantize/codebook_fit.cuh"
#include "quantize/fit.cuh"

namespace gradwire {

constexpr unsigned code_blocks = 4;  // of a multiprocessor, so that memory has enough to do
constexpr std::uint64_t most_far_scales = 1 << 20;  // at once, so that their bits can be counted

struct CodeShared {
    Fields<most_tile> fields;
    float scales[most_tile_scales];
    codebook::Room codebook;
};

// Fits the scales of the groups of a tile, whose values are in `fields`.
__device__ inline void fit_tile(const Piece& piece, const Selection& selection, Groups groups, unsigned n,
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
template <class Entries>
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
__device__ inline void count_not_finite(const Tile& tile, const CodeShared& shared, Selection& selection) {
    unsigned long long count = 0, first = ~0ull;
    for (unsigned i = threadIdx.x; i < tile.n; i += write_threads)
        if ((shared.fields[i] & magnitude_bits) >= not_finite) {
            ++count;
            first = min(first, static_cast<unsigned long long>(tile.begin + i));
        }
    if (count == 0) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(&selection.bad_count), count);
    atomicMin(reinterpret_cast<unsigned long long*>(&selection.bad_first), first);
}

// Writes all of a frame but its checksum.
//
// `Entries` is made of what the bucket shares, the number of the piece, the piece and its selection.
// `read(batch, values)` gives the values of entries, always the same, also if they were read before; and
// `settle(position, value, decoded)` is called once for each, after its last `read`. `finish()` is
// called by each thread in the end. For `end` see seal.cuh.
//
// The values of a dense frame need not be looked at before. Its `selection.peak` is raised to the
// largest magnitude; if that is not finite, `bad_count` and `bad_first` tell how many are not, and
// what was written means nothing.
template <class Entries>
__global__ void __launch_bounds__(write_threads, code_blocks)
    code_tiles(Writing writing, typename Entries::Bucket bucket) {
    GRADWIRE_SHARED(CodeShared, shared);
    const Tile tile = tile_of(writing, blockIdx.x);
    const Piece& piece = writing.pieces[tile.frame];
    Selection& selection = writing.selections[tile.frame];
    const FrameShape& shape = writing.shapes[tile.frame];
    FrameState& state = writing.states[tile.frame];
    if (state.nbytes == 0) return;
    const bool dense = is_dense(piece);
    const Edges edges = edges_of(piece, state);
    const Coded coded = state.coded;
    const auto numel = static_cast<std::uint32_t>(piece.numel);
    const std::uint64_t count = selection.count, values_at = header_len + coded.len;
    const IndexSection section{piece.frame,   header_len,  coded, piece.pattern, selection.selection_key,
                               piece.numel, count,       edges};
    if (tile.number == 0) {
        // What was divided is float32.
        const Dtype dtype = selection.divisor == 1.0f ? piece.dtype : Dtype::f32;
        const Header header{dtype, coded, state.exponent, count, value_len(piece.quantize, numel, count)};
        if (threadIdx.x < header_words)
            reinterpret_cast<std::uint32_t*>(piece.frame)[threadIdx.x] = header_word(piece, header, threadIdx.x);
        if (threadIdx.x == 0) write_index_prologue(section);
    }
    if (count == 0) return;
    const Groups groups = groups_of(piece.quantize, numel);
    const Prologue prologue = prologue_of(piece.quantize, numel);
    const std::uint64_t scales_at = values_at + prologue.len;
    if (tile.number == 0)
        write_fields<write_threads, 32>(piece.frame, values_at * 8, prologue.len / 4, 32, edges,
                                        [&](unsigned i) { return prologue.words[i]; });
    const float* const far_scales = writing.scales + shape.scales;
    if (!shape.held) {
        // The scales of groups that no tile holds are shared out to all tiles.
        const std::uint64_t all = groups.each * number_of(groups, numel, count);
        const std::uint64_t begin = all * tile.number / shape.tiles, end = all * (tile.number + 1) / shape.tiles;
        for (std::uint64_t at = begin; at < end; at += most_far_scales) {
            const auto here = static_cast<unsigned>(min(end - at, most_far_scales));
            write_fields<write_threads, 32>(piece.frame, (scales_at + 4 * at) * 8, here, 32, edges,
                                            [&](unsigned i) { return __float_as_uint(far_scales[at + i]); });
        }
    }
    if (tile.n == 0) return;
    if (!dense) {
        const bool gaps = coded.coding == Coding::rice;
        const std::uint32_t zeros = gaps ? writing.tile_states[blockIdx.x].zeros_before : 0;
        write_positions(section, selection.positions, tile.begin, tile.n, zeros, shared.fields);
    }

    Entries entries(bucket, tile.frame, piece, selection);
    const std::uint32_t peak = load_tile(entries, tile, shared);
    if (dense && lane() == 0) atomicMax(&selection.peak, peak);
    if (dense && peak >= not_finite) count_not_finite(tile, shared, selection);
    __syncthreads();
    const bool near = shape.held;
    if (near) {
        fit_tile(piece, selection, groups, tile.n, shared);
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
            entries.settle(position, value, Own::value(coder, scales, code));
        }
    });
    __syncthreads();
    const unsigned bits = code_bits(piece.quantize);
    const std::uint64_t codes_at = values_at + overhead(piece.quantize, numel, count);
    write_codes<write_threads>(piece.frame, codes_at * 8 + tile.begin * bits, tile.n, bits, edges,
                               [&](unsigned i) { return shared.fields[i]; });
    entries.finish();
}

}  // namespace gradwire
