// Entry points for test_owners.py: one frame is cut, and what is left of sums is added to one residual.
#include "bucket/heads.h"
#include "bucket/split.h"

using namespace gradwire;

extern "C" int gradwire_test_heads(const std::uint8_t* data, const std::int64_t* bounds, std::uint64_t messages,
                                   std::uint64_t most, std::int64_t* table) {
    return launch_heads(data, bounds, messages, most, table, nullptr);
}

namespace {

Decode call_of(const FrameAt* frame, const Target* target, const std::uint32_t* frame_tiles,
               const std::uint32_t* target_tiles, std::uint32_t* failed, std::uint32_t* verdict, void* workspace) {
    Decode call;
    call.frames = frame;
    call.targets = target;
    call.tensors = call.ranks = 1;
    call.frame_tiles = frame_tiles;
    call.target_tiles = target_tiles;
    call.seeded = true;
    call.verdicts = reinterpret_cast<Verdict*>(verdict);
    call.failed = failed;
    call.workspace = workspace;
    return call;
}

}  // namespace

// Makes the pieces of the parts, with the most entries of each, and tells how much memory they take.
extern "C" int gradwire_test_split_layout(const Piece* codec, std::uint64_t entries, const FrameRange* ranges, std::uint64_t count,
                                          Piece* parts, std::uint64_t* most, std::uint64_t* sizes) {
    for (std::uint64_t i = 0; i < 2 * count; ++i) {
        const std::uint64_t numel = ranges[i / 2].end - ranges[i / 2].begin;
        parts[i] = part_of(*codec, numel);
        most[i] = numel < entries ? numel : entries;
    }
    const WritePlan plan = plan_write(parts, most, unsigned(2 * count));
    sizes[0] = plan.table_bytes();
    sizes[1] = plan.scratch_bytes();
    sizes[2] = longest_parts(codec->quantize, codec->numel, entries, count);
    return 0;
}

extern "C" int gradwire_test_split(const FrameAt* frame, const Target* target, const std::uint32_t* frame_tiles,
                                   const std::uint32_t* target_tiles, std::uint32_t* failed, std::uint32_t* verdict, void* workspace,
                                   const FrameRange* ranges, std::uint64_t count, Piece* pieces, const std::uint64_t* most,
                                   Selection* selections, FramePart* parts, std::uint32_t* positions,
                                   const std::uint64_t* firsts, std::uint8_t* slots, std::int64_t* outcomes, void* table,
                                   void* scratch) {
    const WritePlan plan = plan_write(pieces, most, unsigned(2 * count));
    plan.fill_table(table);
    const SplitCall order{ranges, std::uint32_t(count), pieces, selections, parts, positions, firsts, slots, outcomes};
    return split(call_of(frame, target, frame_tiles, target_tiles, failed, verdict, workspace), order, plan, table, scratch,
                 frame_tiles[1], target_tiles[1], nullptr);
}

extern "C" int gradwire_test_absorb(const FrameAt* frame, const Target* target, const std::uint32_t* frame_tiles,
                                    const std::uint32_t* target_tiles, std::uint32_t* failed, std::uint32_t* verdict,
                                    void* workspace, const Piece* piece, const std::uint64_t* start,
                                    unsigned long long* outcome) {
    return absorb(call_of(frame, target, frame_tiles, target_tiles, failed, verdict, workspace), {piece, start, outcome},
                  frame_tiles[1], target_tiles[1], nullptr);
}
