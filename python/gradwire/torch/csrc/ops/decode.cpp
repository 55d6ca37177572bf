// gradwire::decode_bucket: all frames of all ranks, into parts of one flat tensor.
#include "bucket/decode.h"

#include <vector>

#include "ops/torch.h"

namespace gradwire::ops {

namespace {

template <class T>
T* take(std::uint8_t*& at, std::size_t count) {
    auto* here = reinterpret_cast<T*>(at);
    at += (count * sizeof(T) + 15) / 16 * 16;
    return here;
}

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
};

// Writes into `out[ends[2 i] : ends[2 i + 1]]` what the frames `data[starts[j] : starts[j] + lens[j]]` are,
// with j from i * ranks to (i + 1) * ranks. Returns 1 + frames numbers of int32: zero, or how many frames
// there are less the first bad one; and the verdict on each. Waits for nothing.
Tensor decode_bucket(Tensor out, Tensor data, std::vector<std::int64_t> ends, std::vector<std::int64_t> starts,
                     std::vector<std::int64_t> lens, std::int64_t ranks, std::int64_t into, double scale, bool seeded) {
    const int device = static_cast<int>(out.get_device_index());
    const DeviceGuard guard(device);
    check_there(out, "out", device);
    check_bytes(data, "data", device);
    const Dtype dtype = dtype_of(out, "out");
    STD_TORCH_CHECK(into >= 0 && into <= static_cast<std::int64_t>(Into::senders), "into is not known: ", into);
    STD_TORCH_CHECK(static_cast<Into>(into) != Into::add || dtype == Dtype::f32, "out must have dtype torch.float32");
    const std::size_t tensors = ends.size() / 2, frames = starts.size();
    STD_TORCH_CHECK(ends.size() % 2 == 0 && ranks >= 1 && frames == lens.size() && frames == tensors * static_cast<std::size_t>(ranks),
                    "ends must be pairs, and starts and lens one for each of them and rank");
    const auto* const bytes = static_cast<const std::uint8_t*>(data.const_data_ptr());
    auto* const elements = static_cast<std::uint8_t*>(out.mutable_data_ptr());
    const std::size_t itemsize = static_cast<std::size_t>(out.element_size());
    const Tensor host = pinned_bytes(Tables(nullptr, frames, tensors).nbytes);
    Tables tables(static_cast<std::uint8_t*>(host.mutable_data_ptr()), frames, tensors);
    std::vector<std::uint64_t> numels(tensors), sizes(frames);
    for (std::size_t i = 0; i < tensors; ++i) {
        const std::int64_t begin = ends[2 * i], end = ends[2 * i + 1];
        STD_TORCH_CHECK(0 <= begin && begin <= end && end <= out.numel(), "ends must be ranges of out, got ", begin, " to ", end);
        numels[i] = static_cast<std::uint64_t>(end - begin);
        tables.targets[i] = {elements + static_cast<std::size_t>(begin) * itemsize, numels[i], dtype};
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
    const Tensor there = torch::stable::to(host, out.device(), true);
    const Tables on_device(static_cast<std::uint8_t*>(there.mutable_data_ptr()), frames, tensors);
    const Tensor workspace = device_bytes(workspace_bytes, data);
    Tensor result = torch::stable::new_empty(data, {static_cast<std::int64_t>(1 + frames)}, ScalarType::Int);
    auto* const words = static_cast<std::uint32_t*>(result.mutable_data_ptr());
    Decode call;
    call.frames = on_device.frames;
    call.targets = on_device.targets;
    call.tensors = static_cast<std::uint32_t>(tensors);
    call.ranks = static_cast<std::uint32_t>(ranks);
    call.frame_tiles = on_device.frame_tiles;
    call.target_tiles = on_device.target_tiles;
    call.into = static_cast<Into>(into);
    call.scale = scale;
    call.seeded = seeded;
    call.failed = words;
    call.verdicts = reinterpret_cast<Verdict*>(words + 1);
    call.workspace = workspace.mutable_data_ptr();
    check(decode(call, tables.frame_tiles[frames], tables.target_tiles[tensors], stream_of(device)));
    return result;
}

}  // namespace

}  // namespace gradwire::ops

GRADWIRE_SCHEMAS(m) {
    m.def(
        "decode_bucket(Tensor(a!) out, Tensor data, int[] ends, int[] starts, int[] lens, int ranks, int into, "
        "float scale, bool seeded) -> Tensor");
}

GRADWIRE_KERNELS(m) { m.impl("decode_bucket", TORCH_BOX(&gradwire::ops::decode_bucket)); }
