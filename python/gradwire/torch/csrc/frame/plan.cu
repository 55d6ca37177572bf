#include <numeric>

#include "device/arena.h"
#include "frame/checksum.cuh"
#include "frame/writing.cuh"
#include "quantize/fit.cuh"

namespace gradwire {

namespace {

// Entries of a tile: whole groups and whole bytes of any code, of a dense frame whole words. None if no
// tile holds a group.
std::uint64_t tile_of_groups(const Piece& piece, Groups groups) {
    const bool dense = is_dense(piece);
    if (groups.by == Grouping::whole || (groups.by == Grouping::positions && !dense)) return 0;
    const std::uint64_t unit = std::lcm<std::uint64_t>(groups.size, dense ? 32 : 8);
    const std::uint64_t most = std::uint64_t{most_tile_scales} / groups.each * groups.size;
    return (most < most_tile ? most : most_tile) / unit * unit;
}

// Divides the table; how many bytes it has.
std::uint64_t divide_table(const WritePlan& plan, void* table, Writing& writing) {
    Arena arena{table};
    writing.tiles = arena.take<std::uint64_t>(plan.tiles.size());
    writing.fits = arena.take<std::uint64_t>(plan.fits.size());
    writing.parts = arena.take<std::uint64_t>(plan.parts.size());
    writing.shapes = arena.take<FrameShape>(plan.frames());
    writing.turns = arena.take<Turns>(1);
    writing.frame_turns = arena.take<FrameTurns>(plan.frames());
    return arena.used;
}

// The same of the scratch memory.
std::uint64_t divide_scratch(const WritePlan& plan, void* scratch, Writing& writing) {
    Arena arena{scratch};
    writing.states = arena.take<FrameState>(plan.frames());
    writing.tile_states = arena.take<TileState>(plan.tiles.back());
    writing.summaries = arena.take<Summary>(plan.fits.back());
    writing.scales = arena.take<float>(plan.scales);
    return arena.used;
}

}  // namespace

WritePlan plan_write(const Piece* all, const std::uint64_t* most_entries, unsigned count) {
    WritePlan plan;
    plan.tiles = plan.fits = plan.parts = {0};
    for (unsigned i = 0; i < count; ++i) {
        const Piece& piece = all[i];
        const bool dense = is_dense(piece);
        const std::uint64_t most = dense ? piece.numel : most_entries[i];
        const Groups groups = groups_of(piece.quantize, static_cast<std::uint32_t>(piece.numel));
        const std::uint64_t held = groups.by == Grouping::none ? 0 : tile_of_groups(piece, groups);
        FrameShape shape{};
        shape.tile = static_cast<std::uint32_t>(held > 0 ? held : most_tile);
        shape.tiles = static_cast<std::uint32_t>(most > 0 ? pieces(most, shape.tile) : 1);
        shape.scales = plan.scales;
        shape.held = held > 0;
        std::uint64_t fits = 0;
        if (basis_of(piece.quantize) != Basis::none && held == 0) {
            const bool parts = groups.by == Grouping::ranks || groups.by == Grouping::positions;
            const std::uint64_t size = parts && groups.size < most ? groups.size : most;
            const std::uint64_t number = summed_groups(groups, piece.numel, most);
            shape.chunks = static_cast<std::uint32_t>(size > 0 ? pieces(size, chunk_values) : 1);
            fits = number * shape.chunks;
            plan.scales += number * groups.each;
        }
        std::uint64_t longest = longest_frame(piece, most);
        plan.longest.push_back(longest);
        if (piece.limit < longest) longest = piece.limit;
        plan.shapes.push_back(shape);
        plan.tiles.push_back(plan.tiles.back() + shape.tiles);
        plan.fits.push_back(plan.fits.back() + fits);
        plan.parts.push_back(plan.parts.back() + (longest >= header_len ? checksum::parts_of(longest) : 0));
        plan.sparse |= !dense;
        plan.measures |= !dense && needs_measure(static_cast<IndexCoding>(piece.indices));
    }
    return plan;
}

std::uint64_t WritePlan::table_bytes() const {
    Writing writing{};
    return divide_table(*this, nullptr, writing);
}

std::uint64_t WritePlan::scratch_bytes() const {
    Writing writing{};
    return divide_scratch(*this, nullptr, writing);
}

void WritePlan::fill_table(void* table) const {
    Writing writing{};
    divide_table(*this, table, writing);
    put(writing.tiles, tiles);
    put(writing.fits, fits);
    put(writing.parts, parts);
    put(writing.shapes, shapes);
    *writing.turns = {};
    std::fill_n(writing.frame_turns, frames(), FrameTurns{});
}

Writing writing_in(const WritePlan& plan, const Piece* all, Selection* selections, void* table, void* scratch) {
    Writing writing{};
    writing.pieces = all;
    writing.selections = selections;
    writing.frames = plan.frames();
    divide_table(plan, table, writing);
    divide_scratch(plan, scratch, writing);
    return writing;
}

}  // namespace gradwire
