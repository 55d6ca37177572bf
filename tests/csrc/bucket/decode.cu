// Entry points for test_decode.py.
#include "bucket/decode.h"

using namespace gradwire;

extern "C" std::uint64_t gradwire_test_plan_decode(const std::uint64_t* lens, const std::uint64_t* numels,
                                                   std::uint64_t tensors, std::uint64_t ranks, std::uint64_t seeded,
                                                   std::uint32_t* frame_tiles, std::uint32_t* target_tiles) {
    return plan_decode(lens, numels, std::uint32_t(tensors), std::uint32_t(ranks), seeded != 0, frame_tiles,
                       target_tiles);
}

extern "C" int gradwire_test_decode(const FrameAt* frames, const Target* targets, std::uint64_t tensors,
                                    std::uint64_t ranks, const std::uint32_t* frame_tiles,
                                    const std::uint32_t* target_tiles, std::uint64_t into, double scale,
                                    std::uint64_t seeded, std::uint32_t* verdicts, std::uint32_t* failed,
                                    void* workspace) {
    Decode call;
    call.frames = frames;
    call.targets = targets;
    call.tensors = std::uint32_t(tensors);
    call.ranks = std::uint32_t(ranks);
    call.frame_tiles = frame_tiles;
    call.target_tiles = target_tiles;
    call.into = Into(into);
    call.scale = scale;
    call.seeded = seeded != 0;
    call.verdicts = reinterpret_cast<Verdict*>(verdicts);
    call.failed = failed;
    call.workspace = workspace;
    return decode(call, frame_tiles[tensors * ranks], target_tiles[tensors], nullptr);
}
