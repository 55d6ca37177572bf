// gradwire::decode_bucket: all frames of all ranks, into parts of one flat tensor.
#include "ops/reading.h"

namespace gradwire::ops {

namespace {

// Writes into `out[ends[2 i] : ends[2 i + 1]]` what the frames `data[starts[j] : starts[j] + lens[j]]` are,
// with j from i * ranks to (i + 1) * ranks. Returns 1 + frames numbers of int32: zero, or how many frames
// there are less the first bad one; and the verdict on each. Means are over so many ranks, or 0: those of the
// frames. Waits for nothing.
Tensor decode_bucket(Tensor out, Tensor data, std::vector<std::int64_t> ends, std::vector<std::int64_t> starts,
                     std::vector<std::int64_t> lens, std::int64_t ranks, std::int64_t into, double scale, bool seeded,
                     std::int64_t over) {
    const int device = static_cast<int>(out.get_device_index());
    const DeviceGuard guard(device);
    check_there(out, "out", device);
    check_bytes(data, "data", device);
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
    Reading reading = reading_of(targets, data, starts, lens, ranks, seeded);
    reading.call.into = static_cast<Into>(into);
    reading.call.scale = scale;
    STD_TORCH_CHECK(0 <= over && over <= 0xffffffff, "over must be a number of ranks, got ", over);
    reading.call.over = static_cast<std::uint32_t>(over);
    check(decode(reading.call, reading.tiles_of_frames, reading.tiles_of_targets, stream_of(device)));
    return reading.result;
}

}  // namespace

}  // namespace gradwire::ops

GRADWIRE_SCHEMAS(m) {
    m.def(
        "decode_bucket(Tensor(a!) out, Tensor data, int[] ends, int[] starts, int[] lens, int ranks, int into, "
        "float scale, bool seeded, int over) -> Tensor");
}

GRADWIRE_KERNELS(m) { m.impl("decode_bucket", TORCH_BOX(&gradwire::ops::decode_bucket)); }
