// A call of the kernels that read frames: their tables and memory, for the operators that make one.
#pragma once

#include "bucket/decode.h"
#include "device/arena.h"
#include "ops/torch.h"

namespace gradwire::ops {

// The tables of a call, in one piece of memory that goes to the device at once.
struct Tables {
    FrameAt* frames;
    Target* targets;
    std::uint32_t *frame_tiles, *target_tiles;
    std::uint64_t nbytes;
};

inline Tables tables_in(void* memory, std::size_t frames, std::size_t tensors) {
    Arena arena{memory};
    return {arena.take<FrameAt>(frames), arena.take<Target>(tensors), arena.take<std::uint32_t>(frames + 1),
            arena.take<std::uint32_t>(tensors + 1), arena.used};
}

// A call, and what must be there until it is launched. Hidden, as tensors of the stable ABI are.
struct __attribute__((visibility("hidden"))) Reading {
    Decode call;
    Tensor tables, workspace;
    Tensor result;  // int32: `failed`, then the verdict on each frame
};

// The parts `out[ends[2 i] : ends[2 i + 1]]`, to which `into` tells what is written.
inline std::vector<Target> targets_of(const Tensor& out, const std::vector<std::int64_t>& ends, std::int64_t into, int device) {
    check_there(out, "out", device);
    const Dtype dtype = dtype_of(out, "out");
    STD_TORCH_CHECK(into >= 0 && into <= static_cast<std::int64_t>(Into::senders), "into is not known: ", into);
    STD_TORCH_CHECK(static_cast<Into>(into) != Into::add || dtype == Dtype::f32, "out must have dtype torch.float32");
    check_ranges(ends, "ends", out.numel());
    std::vector<Target> targets;
    for (std::size_t i = 0; i < ends.size(); i += 2)
        targets.push_back({data_of<std::uint8_t>(out) + ends[i] * static_cast<std::int64_t>(out.element_size()),
                           static_cast<std::uint64_t>(ends[i + 1] - ends[i]), dtype});
    return targets;
}

// Reads the frames `data[starts[j] : starts[j] + lens[j]]`, for target i with j from i * ranks to (i + 1) * ranks.
inline Reading reading_of(const std::vector<Target>& targets, const Tensor& data, const std::vector<std::int64_t>& starts,
                          const std::vector<std::int64_t>& lens, std::int64_t ranks, bool seeded) {
    const std::size_t tensors = targets.size(), frames = starts.size();
    STD_TORCH_CHECK(ranks >= 1 && frames == lens.size() && frames == tensors * static_cast<std::size_t>(ranks),
                    "starts and lens must have one item for each tensor and rank");
    const Tensor host = pinned_bytes(tables_in(nullptr, frames, tensors).nbytes);
    const Tables tables = tables_in(host.mutable_data_ptr(), frames, tensors);
    put(tables.targets, targets);
    std::vector<std::uint64_t> numels, sizes(frames);
    for (const Target& target : targets) numels.push_back(target.numel);
    for (std::size_t i = 0; i < frames; ++i) {
        STD_TORCH_CHECK(0 <= starts[i] && 0 <= lens[i] && starts[i] <= data.numel() && lens[i] <= data.numel() - starts[i],
                        "starts and lens must be ranges of data, got ", starts[i], " and ", lens[i]);
        sizes[i] = static_cast<std::uint64_t>(lens[i]);
        tables.frames[i] = {data_of<const std::uint8_t>(data) + starts[i], sizes[i]};
    }
    Decode call;
    call.tensors = static_cast<std::uint32_t>(tensors);
    call.ranks = static_cast<std::uint32_t>(ranks);
    call.seeded = seeded;
    const Tensor workspace = device_bytes(plan_decode(sizes.data(), numels.data(), call.tensors, call.ranks, seeded,
                                                      tables.frame_tiles, tables.target_tiles), data);
    const Tensor there = torch::stable::to(host, data.device(), true);
    const Tensor result = torch::stable::new_empty(data, {static_cast<std::int64_t>(1 + frames)}, ScalarType::Int);
    const Tables on_device = tables_in(there.mutable_data_ptr(), frames, tensors);
    call.frames = on_device.frames;
    call.targets = on_device.targets;
    call.frame_tiles = on_device.frame_tiles;
    call.target_tiles = on_device.target_tiles;
    call.all_frame_tiles = tables.frame_tiles[frames];
    call.all_target_tiles = tables.target_tiles[tensors];
    call.failed = data_of<std::uint32_t>(result);
    call.verdicts = reinterpret_cast<Verdict*>(call.failed + 1);
    call.workspace = workspace.mutable_data_ptr();
    return {call, there, workspace, result};
}

}  // namespace gradwire::ops
