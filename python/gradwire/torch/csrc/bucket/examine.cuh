// Whether frames are valid: headers, checksums, positions, scales and codes. Nothing is applied here.
#pragma once

#include "bucket/work.cuh"
#include "device/segments.cuh"

namespace gradwire {

__global__ void read_heads(Decode call, Work work) {
    const std::uint64_t at = static_cast<std::uint64_t>(blockIdx.x) * frame_threads + threadIdx.x;
    if (at >= frames_of(call)) return;
    if (call.frames[at].len == no_frame) {
        work.frames[at] = Frame{};
        work.frames[at].before = Verdict::absent;
        return;
    }
    Frame frame = read_frame(call.frames[at].bytes, call.frames[at].len, call.targets[at / call.ranks].numel);
    if (frame.is_readable() && frame.coding == Coding::seeded && frame.count > 0) {
        if (frame.run)
            frame.size = first_drawn(frame.key, frame.numel);
        else if (!call.seeded)
            frame.after = Verdict::seeded;
    }
    work.frames[at] = frame;
}

// How many positions are drawn: those that are there, or those that are not.
__device__ inline std::uint64_t draws_of(const Frame& frame) {
    const std::uint64_t count = frame.count, others = frame.numel - count;
    return 2 * count > frame.numel ? others : count;
}

__device__ inline bool is_drawn(const Frame& frame) {
    return frame.is_readable() && frame.coding == Coding::seeded && !frame.run && frame.count > 0;
}

// The draws of a frame before a pass, and how many positions are still missing then.
struct Draws {
    std::uint64_t word = 0, missing;

    __device__ Draws(const Frame& frame, const Examined& state, unsigned pass) : missing(draws_of(frame)) {
        for (unsigned earlier = 0; earlier < pass; ++earlier) {
            word += missing;
            missing -= state.drawn[earlier];
        }
    }
};

// Each pass draws as many as are still missing, so that none is one too many.
__global__ void draw_wide(Decode call, Work work, unsigned pass) {
    const unsigned at = segment_of(call.frame_tiles, frames_of(call), static_cast<std::uint32_t>(blockIdx.x));
    const Frame& frame = work.frames[at];
    if (!is_drawn(frame)) return;
    Examined& state = work.states[at];
    const Draws draws(frame, state, pass);
    const std::uint64_t tiles = call.frame_tiles[at + 1] - call.frame_tiles[at], tile = blockIdx.x - call.frame_tiles[at];
    const std::uint32_t fresh =
        mark_drawn(work.marks_of(call, at), frame.key, frame.numel, static_cast<std::uint32_t>(draws.word),
                   tile * examine_threads + threadIdx.x, tiles * examine_threads, draws.missing);
    const std::uint32_t all = block_reduce<examine_threads>(fresh, Sum{});
    if (threadIdx.x == 0 && all != 0) atomicAdd(&state.drawn[pass], all);
}

__global__ void draw_rest(Decode call, Work work) {
    const Frame& frame = work.frames[blockIdx.x];
    if (!is_drawn(frame)) return;
    for (Draws draws(frame, work.states[blockIdx.x], wide_passes); draws.missing > 0;) {
        const std::uint32_t fresh =
            mark_drawn(work.marks_of(call, blockIdx.x), frame.key, frame.numel, static_cast<std::uint32_t>(draws.word),
                       threadIdx.x, examine_threads, draws.missing);
        draws.word += draws.missing;
        draws.missing -= block_reduce<examine_threads>(fresh, Sum{});
    }
}

__global__ void __launch_bounds__(examine_threads) examine(Decode call, Work work) {
    GRADWIRE_SHARED(checksum::Shared, shared);
    const unsigned ticket = take_ticket(work.ticket);
    const unsigned at = segment_of(call.frame_tiles, frames_of(call), ticket);
    const unsigned first = call.frame_tiles[at], tiles = call.frame_tiles[at + 1] - first, tile = ticket - first;
    const Frame& frame = work.frames[at];
    Examined& state = work.states[at];
    if (frame.before != Verdict::good) return;
    for (std::uint64_t part = tile; part < checksum::parts_of(frame.bytes.len); part += tiles) {
        const std::uint32_t sum = checksum::of_part(frame.bytes.at, frame.bytes.len, part, shared);
        if (threadIdx.x == 0) atomicXor(&state.sum, sum);
    }
    if (!frame.is_readable()) return;
    const std::uint64_t number = static_cast<std::uint64_t>(tile) * examine_threads + threadIdx.x;
    const std::uint64_t step = static_cast<std::uint64_t>(tiles) * examine_threads;
    bool good = are_valid(frame.values, frame.count, number, step);
    if (has_upper(frame)) {
        const Upper upper = upper_of(frame, work.marks_of(call, at));
        const UpperFound found = examine_runs<examine_threads>(frame, upper, work.directory_of(call, at), first, tile,
                                                               tiles, work.counts, work.lows);
        good &= found.good;
        if (found.end != 0) atomicMax(&state.end, static_cast<unsigned long long>(found.end));
    } else if (frame.coding == Coding::chunk_local) {
        good &= examine_chunks(frame, number, step);
    }
    if (!good) atomicOr(&state.faults, 1u);
}

__global__ void judge(Decode call, Work work) {
    const std::uint64_t at = static_cast<std::uint64_t>(blockIdx.x) * frame_threads + threadIdx.x;
    const std::uint32_t frames = frames_of(call);
    if (at >= frames) return;
    const Frame& frame = work.frames[at];
    const Examined& state = work.states[at];
    Verdict verdict = frame.before;
    if (verdict == Verdict::good && ~state.sum != frame.stored) verdict = Verdict::corrupt;
    if (verdict == Verdict::good) verdict = frame.after;
    if (verdict == Verdict::good && state.faults != 0) verdict = Verdict::corrupt;
    if (verdict == Verdict::good && has_upper(frame) && !may_end(frame, state.end)) verdict = Verdict::corrupt;
    if (verdict == Verdict::absent) verdict = Verdict::good;
    call.verdicts[at] = verdict;
    // The first frame has the largest number here.
    if (verdict != Verdict::good) atomicMax(call.failed, static_cast<unsigned>(frames - at));
}

}  // namespace gradwire
