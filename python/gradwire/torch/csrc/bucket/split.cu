// The launches of a split: positions of all entries, where parts begin, and the frames of the parts.
#include "bucket/split.h"

#include "bucket/work.cuh"
#include "device/probe.h"
#include "device/segments.cuh"
#include "frame/prepare.cuh"
#include "frame/seal.cuh"

namespace gradwire {

namespace {

constexpr unsigned list_threads = 256, part_threads = 64, place_threads = 256;
constexpr std::uint64_t slot_align = 16;

// Puts down the positions of all entries, in their order.
__global__ void __launch_bounds__(list_threads) list_positions(Decode call, Work work, SplitCall split) {
    if (*call.failed != 0) return;
    const TargetTile tile(call);
    const unsigned at = tile.tensor;
    const Frame& frame = work.frames[at];
    if (frame.is_dense()) return;  // every position, which needs no list
    const Upper upper = has_upper(frame) ? upper_of(frame, work.marks_of(call, at)) : Upper{};
    std::uint32_t* const positions = split.positions + split.firsts[at];
    visit_entries<list_threads>(frame, upper, work.directory_of(call, at), tile.begin, tile.end,
                                [&](std::uint32_t rank, std::uint32_t position) { positions[rank] = position; });
}

// A range before it is cut, or a part of it: positions and entries.
struct PartBounds {
    std::uint64_t begin, end, rank, beyond;
};

// Where the second part of a range begins, if it begins within a group and goes on behind that.
__device__ bool next_group(const Frame& frame, const std::uint32_t* positions, const PartBounds& whole, std::uint64_t& position,
                           std::uint64_t& rank) {
    const Groups& groups = frame.values.groups;
    if (groups.by == Grouping::ranks) {
        rank = pieces(whole.rank, groups.size) * groups.size;
        if (rank <= whole.rank || rank >= whole.beyond) return false;
        position = frame.is_dense() ? rank : positions[rank];
        return true;
    }
    if (groups.by != Grouping::positions) return false;
    position = pieces(whole.begin, groups.size) * groups.size;
    if (position <= whole.begin || position >= whole.end) return false;
    rank = frame.is_dense() ? position : first_from(positions, frame.count, position);
    return true;
}

__device__ void put_part(const SplitCall& split, std::uint64_t at, const PartBounds* cut, std::uint32_t* positions) {
    Selection selection{};
    selection.status = cut != nullptr ? Status::ok : Status::skipped;
    if (cut != nullptr) {
        selection.count = cut->beyond - cut->rank;
        selection.positions = positions + cut->rank;
        split.pieces[at].numel = cut->end - cut->begin;
        split.parts[at] = {cut->begin, cut->rank};
    }
    split.selections[at] = selection;
}

__global__ void find_parts(Decode call, Work work, SplitCall split) {
    const std::uint64_t at = static_cast<std::uint64_t>(blockIdx.x) * part_threads + threadIdx.x;
    if (at >= split.count) return;
    const FrameRange range = split.ranges[at];
    const Frame& frame = work.frames[range.frame];
    std::uint32_t* const positions = split.positions + split.firsts[range.frame];
    if (*call.failed != 0 || range.begin == range.end) {
        put_part(split, 2 * at, nullptr, positions);
        put_part(split, 2 * at + 1, nullptr, positions);
        return;
    }
    PartBounds whole{range.begin, range.end, range.begin, range.end};
    if (!frame.is_dense()) {
        whole.rank = first_from(positions, frame.count, range.begin);
        whole.beyond = first_from(positions, frame.count, range.end);
    }
    std::uint64_t position = 0, rank = 0;
    const bool cut = next_group(frame, positions, whole, position, rank);
    const PartBounds first = cut ? PartBounds{whole.begin, position, whole.rank, rank} : whole;
    const PartBounds second{position, whole.end, rank, whole.beyond};
    put_part(split, 2 * at, &first, positions);
    put_part(split, 2 * at + 1, cut ? &second : nullptr, positions);
}

// Makes positions relative to their part; those of every position too.
__global__ void __launch_bounds__(write_threads) localize(Writing writing, SplitCall split, Work work) {
    const Tile tile = tile_of(writing, blockIdx.x);
    if (is_dense(writing.pieces[tile.frame]) || writing.selections[tile.frame].status != Status::ok) return;
    const FramePart part = split.parts[tile.frame];
    const std::uint32_t index = split.ranges[tile.frame / 2].frame;
    std::uint32_t* const positions = split.positions + split.firsts[index] + part.rank + tile.begin;
    const bool every = work.frames[index].is_dense();
    for (unsigned i = threadIdx.x; i < tile.n; i += write_threads)
        positions[i] = every ? static_cast<std::uint32_t>(tile.begin + i) : positions[i] - static_cast<std::uint32_t>(part.start);
}

// Each thread takes parts `place_threads` apart, and counts on from what all before have.
__global__ void __launch_bounds__(place_threads) place_parts(Writing writing, SplitCall split) {
    std::uint64_t before = 0;
    for (unsigned first = 0; first < writing.frames; first += place_threads) {
        const unsigned i = first + threadIdx.x;
        const std::uint64_t nbytes = i < writing.frames ? writing.states[i].nbytes : 0;
        const auto scanned = block_scan<place_threads, unsigned long long>(pieces(nbytes, slot_align) * slot_align);
        if (i < writing.frames) split.pieces[i].frame = split.slots + before + scanned.before;
        before += scanned.total;
    }
}

__global__ void __launch_bounds__(write_threads) measure_parts(Writing writing) {
    measure_tile<write_threads>(writing, blockIdx.x, true);
}

__global__ void __launch_bounds__(fit_threads) clear_slots(Writing writing) { clear_share(writing, blockIdx.x); }

// Writes all of the frame of a part but its checksum, a block for each tile of its entries.
__global__ void __launch_bounds__(write_threads) copy_tiles(Writing writing, SplitCall split, Work work) {
    struct Shared {
        Fields<most_tile> fields;
    };
    GRADWIRE_SHARED(Shared, shared);
    const Tile tile = tile_of(writing, blockIdx.x);
    const Piece& piece = writing.pieces[tile.frame];
    FrameState& state = writing.states[tile.frame];
    if (state.nbytes == 0) return;
    const FramePart part = split.parts[tile.frame];
    const Frame& from = work.frames[split.ranges[tile.frame / 2].frame];
    const Section& values = from.values;
    const auto numel = static_cast<std::uint32_t>(piece.numel);
    const std::uint64_t count = writing.selections[tile.frame].count;
    const Groups groups = groups_of(piece.quantize, numel);
    const std::uint64_t group = groups.by == Grouping::ranks       ? part.rank / groups.size
                                : groups.by == Grouping::positions ? part.start / groups.size
                                                                   : 0;
    const int exponent = count > 0 ? static_cast<std::int16_t>(from.bytes.word(10) & 0xffff) : 0;
    write_sections(writing, tile, static_cast<Dtype>(from.bytes.byte(5)), exponent, true,
                   [&](std::uint64_t i) { return values.scales.word(4 * (group * groups.each + i)); }, shared.fields);
    if (tile.n == 0) return;
    const unsigned bits = code_bits(piece.quantize);
    const std::uint64_t codes_at = header_len + state.coded.len + overhead(piece.quantize, numel, count);
    const std::uint64_t first = part.rank + tile.begin;
    write_codes<write_threads>(piece.frame, codes_at * 8 + tile.begin * bits, tile.n, bits, edges_of(piece, state),
                               [&](unsigned i) { return values.codes.field(first + i, bits); });
}

const Kernels kernels{list_positions, find_parts,  localize,   measure_parts,
                      place_parts,    clear_slots, copy_tiles, seal_parts<false>};

}  // namespace

Piece part_of(const Piece& codec, std::uint64_t numel) {
    Piece part = codec;
    part.numel = numel;
    part.limit = ~std::uint64_t{0};
    part.indices = static_cast<std::uint32_t>(IndexCoding::automatic);
    part.pattern = {};
    // As the frame says it: of all positions, whatever the length of a part.
    if (part.quantize.kind == Quantizer::two_means && part.quantize.block == 0)
        part.quantize.block = static_cast<std::uint32_t>(codec.numel > 0 ? codec.numel : 1);
    return part;
}

std::uint64_t longest_parts(const Quantize& quantize, std::uint64_t numel, std::uint64_t entries, std::uint64_t ranges) {
    // A part has a header, no more than two groups that another one has too, and bytes that it does not fill.
    const Groups groups = groups_of(quantize, static_cast<std::uint32_t>(numel));
    const std::uint64_t each = header_len + 8 + 2 * 4 * groups.each + 2 * slot_align;
    const std::uint64_t scales = 4 * groups.each * number_of(groups, numel, entries);
    // Of Elias-Fano, an entry has at most 31 low bits, and three in the upper vector.
    return 2 * ranges * each + scales + pieces(entries * (code_bits(quantize) + most_low_bits + 3), 8);
}

cudaError_t split(const Decode& call, const SplitCall& split, const WritePlan& plan, void* table, void* scratch,
                  cudaStream_t stream) {
    if (split.count == 0) return cudaSuccess;
    Work work{};
    GRADWIRE_TRY(read_frames(call, stream, work));
    const Writing writing = writing_in(plan, split.pieces, split.selections, table, scratch);
    const std::uint64_t tiles = plan.tiles.back(), parts = plan.parts.back();
    GRADWIRE_TRY(launch(list_positions, call.all_target_tiles, list_threads, stream, call, work, split));
    GRADWIRE_TRY(launch(find_parts, pieces(split.count, part_threads), part_threads, stream, call, work, split));
    GRADWIRE_TRY(launch(localize, tiles, write_threads, stream, writing, split, work));
    GRADWIRE_TRY(launch(measure_parts, tiles, write_threads, stream, writing));
    GRADWIRE_TRY(launch(place_parts, 1, place_threads, stream, writing, split));
    GRADWIRE_TRY(launch(clear_slots, tiles, fit_threads, stream, writing));
    GRADWIRE_TRY(launch(copy_tiles, tiles, write_threads, stream, writing, split, work));
    return launch(seal_parts<false>, parts > 0 ? parts : 1, checksum::threads, stream, writing, split.table);
}

}  // namespace gradwire
