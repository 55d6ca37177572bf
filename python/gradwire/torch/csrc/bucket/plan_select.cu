// How the work on a bucket is shared out, and what memory it takes.
#include <algorithm>

#include "bucket/select.cuh"
#include "device/arena.h"

namespace gradwire {

namespace {

// Entries that a list has to hold: all that may be compacted at a time, and the largest sample.
std::uint64_t room_of(const Sparsify& options, std::uint64_t numel) {
    const std::uint64_t sample = numel < 2 * sample_entries ? numel : 2 * sample_entries;
    std::uint64_t room = numel;
    switch (options.kind) {
        case Sparsifier::all: return 0;
        case Sparsifier::topk:
            room = survivors_cap(target_of(options, numel), numel);
            break;
        case Sparsifier::sampled_topk: {
            room = survivors_cap(share_of(options.ratio, numel), numel);
            const std::uint64_t samples = plan_sample(options, numel).samples;
            room = room > samples ? room : samples;
            break;
        }
        case Sparsifier::sid:
            if (options.banded) {
                const std::uint64_t k = target_of(options, numel);
                const double aim = survivors_aim(k, numel), few = static_cast<double>(numel / sid_few + 1);
                room = survivors_cap(static_cast<std::uint64_t>(aim > few ? aim : few), numel);
            }
            break;
        case Sparsifier::chunk_topk:
        case Sparsifier::random_k: return max_count(options, numel);
        default:
            break;
    }
    room = room > sample ? room : sample;
    return room < numel ? room : numel;
}

// The same of the second list, which a team narrows the first down into.
std::uint64_t other_room_of(const Piece& piece, std::uint64_t room) {
    switch (piece.sparsify.kind) {
        case Sparsifier::threshold:
        case Sparsifier::chunk_topk:
        case Sparsifier::random_k:
        case Sparsifier::custom: return 0;
        default: return piece.given ? 0 : room;
    }
}

// Candidates that each row of entries has room for: twice as many as there are if all that the list holds
// are spread evenly, so that few rows are read again.
std::uint32_t row_room_of(const Piece& piece, std::uint64_t room) {
    switch (piece.sparsify.kind) {
        case Sparsifier::all:
        case Sparsifier::chunk_topk:
        case Sparsifier::random_k:
        case Sparsifier::custom: return 0;
        default:
            break;
    }
    const std::uint64_t even = pieces(2 * room, pieces(piece.numel, row_entries) + 1);
    return piece.given ? 0 : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(even, 16, row_entries / 8));
}

// Makes pointers of offsets from a base.
template <class... T>
void move(void* base, T*&... offsets) {
    const auto at = reinterpret_cast<std::uintptr_t>(base);
    ((offsets = reinterpret_cast<T*>(at + reinterpret_cast<std::uintptr_t>(offsets))), ...);
}

// Divides the table; how many bytes it has.
std::uint64_t divide_table(const SelectPlan& plan, void* table, Selecting& bucket) {
    Arena arena{table};
    bucket.desks = arena.take<Desk>(plan.desks.size());
    bucket.first_chunk = arena.take<std::uint64_t>(plan.first_chunk.size());
    bucket.first_piece = arena.take<std::uint32_t>(plan.first_piece.size());
    return arena.used;
}

}  // namespace

void complete(Piece& piece) {
    if (piece.sparsify.kind != Sparsifier::sid) return;
    const double numel = static_cast<double>(std::max<std::uint64_t>(piece.numel, 1));
    set_stages(piece.sparsify, static_cast<double>(target_of(piece.sparsify, piece.numel)) / numel);
}

SelectPlan plan_select(const Piece* all, unsigned count, unsigned blocks) {
    SelectPlan plan;
    plan.pieces = count;
    std::uint64_t weight = 0, most = 0;
    for (unsigned i = 0; i < count; ++i) {
        plan.first_chunk.push_back(plan.chunks);
        plan.chunks += pieces(all[i].numel, chunk_entries);
        weight += all[i].numel + chunk_entries / 4;
        most += std::max<std::uint64_t>(pieces(all[i].numel, chunk_entries), 1);
    }
    // No more than have work: all must find room at once, beside the kernels of other streams. One at
    // least: where a device has room for none, the launch says so.
    plan.blocks = blocks = std::max(static_cast<unsigned>(std::min<std::uint64_t>(blocks, most)), 1u);
    plan.first_chunk.push_back(plan.chunks);
    plan.first_piece.assign(blocks, count);
    Arena kept{nullptr}, scratch{nullptr};
    std::uint64_t before = 0;
    for (unsigned i = 0; i < count; ++i) {
        const std::uint64_t numel = all[i].numel, chunks = pieces(numel, chunk_entries), own = numel + chunk_entries / 4;
        Desk desk{};
        // Blocks in proportion, those that begin within the piece's part of the whole; one at least.
        auto block_at = [&](std::uint64_t at) { return static_cast<std::uint64_t>(static_cast<double>(at) * blocks / static_cast<double>(weight)); };
        std::uint64_t first = block_at(before), last = block_at(before + own);
        if (first >= blocks) first = blocks - 1;
        if (last > blocks) last = blocks;
        std::uint64_t size = last > first ? last - first : 1;
        if (size > chunks) size = chunks > 0 ? chunks : 1;
        before += own;
        desk.first_block = static_cast<std::uint32_t>(first);
        desk.blocks = static_cast<std::uint32_t>(size);
        for (std::uint64_t b = first; b < first + size; ++b)
            if (plan.first_piece[b] > i) plan.first_piece[b] = i;
        const std::uint64_t room = all[i].given ? all[i].support_count : room_of(all[i].sparsify, numel);
        const bool dense = all[i].sparsify.kind == Sparsifier::all;
        desk.room = room;
        desk.mask = scratch.take<std::uint32_t>(dense ? 0 : pieces(numel, 32));
        desk.marked = scratch.take<std::uint32_t>(chunks);
        desk.row_room = row_room_of(all[i], room);
        const std::uint64_t rows = desk.row_room > 0 ? pieces(numel, row_entries) : 0;
        desk.found = scratch.take<std::uint32_t>(rows);
        desk.candidates = scratch.take<Candidate>(rows * desk.row_room);
        desk.parts = scratch.take<Moments>(chunks);
        desk.lists[0] = {scratch.take<std::uint32_t>(room), scratch.take<float>(room)};
        const std::uint64_t other = other_room_of(all[i], room);
        desk.lists[1] = {scratch.take<std::uint32_t>(other), scratch.take<float>(other)};
        desk.arrivals = kept.take<unsigned>(1);
        desk.slots = scratch.take<std::uint64_t>(2 * size);
        desk.bins = kept.take<std::uint32_t>(size > 1 ? team_histograms * widest_digit : 0);
        plan.desks.push_back(desk);
        const std::uint64_t most = all[i].given ? room : max_count(all[i].sparsify, numel);
        plan.most_entries.push_back(dense ? 0 : room < most ? room : most);
    }
    plan.kept_bytes = kept.used;
    plan.scratch_bytes = scratch.used;
    return plan;
}

std::uint64_t SelectPlan::table_bytes() const {
    Selecting bucket{};
    return divide_table(*this, nullptr, bucket);
}

void SelectPlan::fill_table(void* table, void* kept, void* scratch) const {
    Selecting bucket{};
    divide_table(*this, table, bucket);
    for (Desk desk : desks) {
        move(scratch, desk.mask, desk.marked, desk.found, desk.candidates, desk.parts, desk.slots);
        for (List& list : desk.lists) move(scratch, list.positions, list.values);
        move(kept, desk.arrivals, desk.bins);
        *bucket.desks++ = desk;
    }
    put(bucket.first_chunk, first_chunk);
    put(bucket.first_piece, first_piece);
}

Selecting selecting_in(const SelectPlan& plan, const Piece* pieces, Selection* selections, void* table, float divisor,
                       bool trims) {
    Selecting bucket{pieces, selections, nullptr, nullptr, nullptr, plan.pieces, divisor, trims};
    divide_table(plan, table, bucket);
    return bucket;
}

}  // namespace gradwire
