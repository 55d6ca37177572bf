// Host side of decoding: sizes and launches. The kernels are in examine.cuh and apply.cuh.
#include "bucket/decode.h"

#include "bucket/absorb.cuh"
#include "device/probe.h"

namespace gradwire {

namespace {

std::uint64_t aligned(std::uint64_t bytes) { return pieces(bytes, 16) * 16; }

// Where the parts of the workspace begin. What must be zero comes first.
struct Parts {
    std::uint64_t states, ticket, counts, lows, marks, zeroed, frames, ranks, starts, end;

    Parts(std::uint64_t frames_count, std::uint64_t tiles, bool seeded) {
        std::uint64_t at = 0;
        const auto take = [&at](std::uint64_t bytes) {
            const std::uint64_t here = at;
            at += aligned(bytes);
            return here;
        };
        states = take(frames_count * sizeof(Examined));
        ticket = take(sizeof(unsigned));
        counts = take(tiles * sizeof(unsigned long long));
        lows = take(tiles * sizeof(unsigned long long));
        marks = take(seeded ? tiles * marks_of_tile * sizeof(std::uint32_t) : 0);
        zeroed = at;
        frames = take(frames_count * sizeof(Frame));
        ranks = take(tiles * examine_threads * sizeof(std::uint32_t));
        starts = take(tiles * examine_threads * sizeof(std::uint32_t));
        end = at;
    }
};

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
    return Parts(frame, frame_tiles[frame], seeded).end;
}

cudaError_t read_frames(const Decode& call, std::uint32_t tiles_of_frames, cudaStream_t stream, Work& work) {
    const std::uint64_t frames = static_cast<std::uint64_t>(call.tensors) * call.ranks;
    GRADWIRE_TRY(cudaMemsetAsync(call.failed, 0, sizeof *call.failed, stream));
    const Parts parts(frames, tiles_of_frames, call.seeded);
    auto* base = static_cast<std::uint8_t*>(call.workspace);
    GRADWIRE_TRY(cudaMemsetAsync(base, 0, parts.zeroed, stream));
    work.states = reinterpret_cast<Examined*>(base + parts.states);
    work.ticket = reinterpret_cast<unsigned*>(base + parts.ticket);
    work.counts = reinterpret_cast<unsigned long long*>(base + parts.counts);
    work.lows = reinterpret_cast<unsigned long long*>(base + parts.lows);
    work.marks = reinterpret_cast<std::uint32_t*>(base + parts.marks);
    work.frames = reinterpret_cast<Frame*>(base + parts.frames);
    work.directory = {reinterpret_cast<std::uint32_t*>(base + parts.ranks),
                      reinterpret_cast<std::uint32_t*>(base + parts.starts)};
    const std::uint64_t by_frame = pieces(frames, frame_threads);
    GRADWIRE_TRY(launch(read_heads, {by_frame}, frame_threads, stream, call, work));
    if (call.seeded) {
        for (unsigned pass = 0; pass < wide_passes; ++pass)
            GRADWIRE_TRY(launch(draw_wide, {tiles_of_frames}, examine_threads, stream, call, work, pass));
        GRADWIRE_TRY(launch(draw_rest, {frames}, examine_threads, stream, call, work));
    }
    GRADWIRE_TRY(launch(examine, {tiles_of_frames}, examine_threads, stream, call, work));
    return launch(judge, {by_frame}, frame_threads, stream, call, work);
}

cudaError_t decode(const Decode& call, std::uint32_t tiles_of_frames, std::uint32_t tiles_of_targets,
                   cudaStream_t stream) {
    Work work{};
    if (call.tensors == 0 && call.into == Into::add) return cudaMemsetAsync(call.failed, 0, sizeof *call.failed, stream);
    GRADWIRE_TRY(read_frames(call, tiles_of_frames, stream, work));
    return launch(apply, {tiles_of_targets}, apply_threads, stream, call, work, finish_of(call));
}

cudaError_t absorb(const Decode& call, const Absorb& absorb, std::uint32_t tiles_of_frames,
                   std::uint32_t tiles_of_targets, cudaStream_t stream) {
    if (call.tensors == 0) return cudaSuccess;
    Work work{};
    GRADWIRE_TRY(read_frames(call, tiles_of_frames, stream, work));
    return launch(absorb_left, {tiles_of_targets}, apply_threads, stream, call, work, absorb);
}

}  // namespace gradwire
