// A call of the kernels that read frames: their tables and memory, for the operators that make one.
#pragma once

#include <vector>

#include "bucket/decode.h"
#include "ops/torch.h"

namespace gradwire::ops {

// The tables of a call, in one piece of memory that goes to the device at once.
struct Tables {
    FrameAt* frames;
    Target* targets;
    std::uint32_t *frame_tiles, *target_tiles;
    std::uint64_t nbytes;

    Tables(std::uint8_t* base, std::size_t frame_count, std::size_t tensors) {
        std::uint8_t* at = base;
        frames = take<FrameAt>(at, frame_count);
        targets = take<Target>(at, tensors);
        frame_tiles = take<std::uint32_t>(at, frame_count + 1);
        target_tiles = take<std::uint32_t>(at, tensors + 1);
        nbytes = static_cast<std::uint64_t>(at - base);
    }

  private:
    template <class T>
    static T* take(std::uint8_t*& at, std::size_t count) {
        auto* here = reinterpret_cast<T*>(at);
        at += (count * sizeof(T) + 15) / 16 * 16;
        return here;
    }
};

// A call, and what must be there until it is launched. Hidden, as tensors of the stable ABI are.
struct __attribute__((visibility("hidden"))) Reading {
    Decode call;
    std::uint32_t tiles_of_frames, tiles_of_targets;
    Tensor tables, workspace;
    Tensor result;  // int32: `failed`, then the verdict on each frame
};

// The parts `out[ends[2 i] : ends[2 i + 1]]`, to which `into` tells what is written.
inline std::vector<Target> targets_of(const Tensor& out, const std::vector<std::int64_t>& ends, std::int64_t into, int device) {
    check_there(out, "out", device);
    const Dtype dtype = dtype_of(out, "out");
    STD_TORCH_CHECK(into >= 0 && into <= static_cast<std::int64_t>(Into::senders), "into is not known: ", into);
    STD_TORCH_CHECK(static_cast<Into>(into) != Into::add || dtype == Dtype::f32, "out must have dtype torch.float32");
    STD_TORCH_CHECK(ends.size() % 2 == 0, "ends must be pairs");
    auto* const elements = static_cast<std::uint8_t*>(out.mutable_data_ptr());
    const std::size_t itemsize = static_cast<std::size_t>(out.element_size());
    std::vector<Target> targets(ends.size() / 2);
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const std::int64_t begin = ends[2 * i], end = ends[2 * i + 1];
        STD_TORCH_CHECK(0 <= begin && begin <= end && end <= out.numel(), "ends must be ranges of out, got ", begin, " to ", end);
        targets[i] = {elements + static_cast<std::size_t>(begin) * itemsize, static_cast<std::uint64_t>(end - begin), dtype};
    }
    return targets;
}

// Reads the frames `data[starts[j] : starts[j] + lens[j]]`, for target i with j from i * ranks to (i + 1) * ranks.
inline Reading reading_of(const std::vector<Target>& targets, const Tensor& data, const std::vector<std::int64_t>& starts,
                          const std::vector<std::int64_t>& lens, std::int64_t ranks, bool seeded) {
    const std::size_t tensors = targets.size(), frames = starts.size();
    STD_TORCH_CHECK(ranks >= 1 && frames == lens.size() && frames == tensors * static_cast<std::size_t>(ranks),
                    "starts and lens must have one item for each tensor and rank");
    const auto* const bytes = static_cast<const std::uint8_t*>(data.const_data_ptr());
    const Tensor host = pinned_bytes(Tables(nullptr, frames, tensors).nbytes);
    Tables tables(static_cast<std::uint8_t*>(host.mutable_data_ptr()), frames, tensors);
    std::vector<std::uint64_t> numels(tensors), sizes(frames);
    for (std::size_t i = 0; i < tensors; ++i) {
        tables.targets[i] = targets[i];
        numels[i] = targets[i].numel;
    }
    for (std::size_t i = 0; i < frames; ++i) {
        STD_TORCH_CHECK(0 <= starts[i] && 0 <= lens[i] && starts[i] <= data.numel() && lens[i] <= data.numel() - starts[i],
                        "starts and lens must be ranges of data, got ", starts[i], " and ", lens[i]);
        sizes[i] = static_cast<std::uint64_t>(lens[i]);
        tables.frames[i] = {bytes + starts[i], sizes[i]};
    }
    const std::uint64_t workspace_bytes =
        plan_decode(sizes.data(), numels.data(), static_cast<std::uint32_t>(tensors), static_cast<std::uint32_t>(ranks),
                    seeded, tables.frame_tiles, tables.target_tiles);
    const Tensor there = torch::stable::to(host, data.device(), true), workspace = device_bytes(workspace_bytes, data);
    const Tensor result = torch::stable::new_empty(data, {static_cast<std::int64_t>(1 + frames)}, ScalarType::Int);
    const Tables on_device(static_cast<std::uint8_t*>(there.mutable_data_ptr()), frames, tensors);
    auto* const words = static_cast<std::uint32_t*>(result.mutable_data_ptr());
    Decode call;
    call.frames = on_device.frames;
    call.targets = on_device.targets;
    call.tensors = static_cast<std::uint32_t>(tensors);
    call.ranks = static_cast<std::uint32_t>(ranks);
    call.frame_tiles = on_device.frame_tiles;
    call.target_tiles = on_device.target_tiles;
    call.seeded = seeded;
    call.failed = words;
    call.verdicts = reinterpret_cast<Verdict*>(words + 1);
    call.workspace = workspace.mutable_data_ptr();
    return {call, tables.frame_tiles[frames], tables.target_tiles[tensors], there, workspace, result};
}

}  // namespace gradwire::ops
