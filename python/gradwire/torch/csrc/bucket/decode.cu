// Host side of decoding: sizes and launches. The kernels are in examine.cuh and apply.cuh.
#include "bucket/decode.h"

#include "bucket/absorb.cuh"
#include "device/arena.h"
#include "device/probe.h"

namespace gradwire {

namespace {

struct WorkspaceSize {
    std::uint64_t zeroed, all;  // bytes; those that must be zero come first
};

WorkspaceSize divide(void* workspace, std::uint64_t frames, std::uint64_t tiles, bool seeded, Work& work) {
    Arena arena{workspace};
    work.states = arena.take<Examined>(frames);
    work.ticket = arena.take<unsigned>(1);
    work.counts = arena.take<unsigned long long>(tiles);
    work.lows = arena.take<unsigned long long>(tiles);
    work.marks = arena.take<std::uint32_t>(seeded ? tiles * marks_of_tile : 0);
    const std::uint64_t zeroed = arena.used;
    work.frames = arena.take<Frame>(frames);
    work.directory.ranks = arena.take<std::uint32_t>(tiles * examine_threads);
    work.directory.starts = arena.take<std::uint32_t>(tiles * examine_threads);
    return {zeroed, arena.used};
}

// Multiplying by a power of two is exact, so it may happen entry by entry: zero if it is none.
float power_of_two(double value) {
    const auto narrow = static_cast<float>(value);
    std::uint32_t bits;
    static_assert(sizeof bits == sizeof narrow);
    __builtin_memcpy(&bits, &narrow, sizeof bits);
    const std::uint32_t field = bits >> 23;
    const bool power = field >= 1 && field <= 254 && bits << 9 == 0;
    return power && static_cast<double>(narrow) == value ? narrow : 0.0f;
}

Finish finish_of(const Decode& call) {
    Finish finish{1.0f, 1.0f, 1.0f, false};
    if (call.into == Into::add) finish.factor = static_cast<float>(call.scale);
    if (call.into != Into::ranks && call.into != Into::senders) return finish;
    finish.ranks = call.into == Into::ranks ? static_cast<float>(call.over != 0 ? call.over : call.ranks) : 1.0f;
    const float factor = power_of_two(call.scale / static_cast<double>(finish.ranks));
    finish.scaled = factor == 0.0f;
    finish.scale = static_cast<float>(call.scale);
    if (!finish.scaled) finish.factor = factor;
    return finish;
}

const Kernels kernels{read_heads, draw_wide, draw_rest, examine, judge, apply, absorb_left};

}  // namespace

std::uint64_t plan_decode(const std::uint64_t* frame_lens, const std::uint64_t* numels, std::uint32_t tensors,
                          std::uint32_t ranks, bool seeded, std::uint32_t* frame_tiles, std::uint32_t* target_tiles) {
    frame_tiles[0] = target_tiles[0] = 0;
    std::uint64_t frame = 0;
    for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
        const std::uint64_t drawn = seeded ? pieces(numels[tensor], 32 * marks_of_tile) : 0;
        for (std::uint32_t rank = 0; rank < ranks; ++rank, ++frame) {
            std::uint64_t tiles = pieces(frame_lens[frame], tile_bytes);
            if (tiles < drawn) tiles = drawn;
            frame_tiles[frame + 1] = frame_tiles[frame] + static_cast<std::uint32_t>(tiles > 0 ? tiles : 1);
        }
        target_tiles[tensor + 1] = target_tiles[tensor] + static_cast<std::uint32_t>(pieces(numels[tensor], tile_elements));
    }
    Work work{};
    return divide(nullptr, frame, frame_tiles[frame], seeded, work).all;
}

cudaError_t read_frames(const Decode& call, cudaStream_t stream, Work& work) {
    const std::uint64_t frames = static_cast<std::uint64_t>(call.tensors) * call.ranks, tiles = call.all_frame_tiles;
    GRADWIRE_TRY(cudaMemsetAsync(call.failed, 0, sizeof *call.failed, stream));
    const WorkspaceSize size = divide(call.workspace, frames, tiles, call.seeded, work);
    GRADWIRE_TRY(cudaMemsetAsync(call.workspace, 0, size.zeroed, stream));
    const std::uint64_t by_frame = pieces(frames, frame_threads);
    GRADWIRE_TRY(launch(read_heads, by_frame, frame_threads, stream, call, work));
    if (call.seeded) {
        for (unsigned pass = 0; pass < wide_passes; ++pass)
            GRADWIRE_TRY(launch(draw_wide, tiles, examine_threads, stream, call, work, pass));
        GRADWIRE_TRY(launch(draw_rest, frames, examine_threads, stream, call, work));
    }
    GRADWIRE_TRY(launch(examine, tiles, examine_threads, stream, call, work));
    return launch(judge, by_frame, frame_threads, stream, call, work);
}

cudaError_t decode(const Decode& call, cudaStream_t stream) {
    Work work{};
    if (call.tensors == 0 && call.into == Into::add) return cudaMemsetAsync(call.failed, 0, sizeof *call.failed, stream);
    GRADWIRE_TRY(read_frames(call, stream, work));
    return launch(apply, call.all_target_tiles, apply_threads, stream, call, work, finish_of(call));
}

cudaError_t absorb(const Decode& call, const Absorb& absorb, cudaStream_t stream) {
    if (call.tensors == 0) return cudaSuccess;
    Work work{};
    GRADWIRE_TRY(read_frames(call, stream, work));
    return launch(absorb_left, call.all_target_tiles, apply_threads, stream, call, work, absorb);
}

}  // namespace gradwire
