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
    check_bytes(data, "data", device);
    const std::vector<Target> targets = targets_of(out, ends, into, device);
    Reading reading = reading_of(targets, data, starts, lens, ranks, seeded);
    reading.call.into = static_cast<Into>(into);
    reading.call.scale = scale;
    STD_TORCH_CHECK(0 <= over && over <= 0xffffffff, "over must be a number of ranks, got ", over);
    reading.call.over = static_cast<std::uint32_t>(over);
    check(decode(reading.call, stream_of(device)));
    return reading.result;
}

GRADWIRE_OPERATOR(GRADWIRE_KERNELS, decode_bucket,
                  "(Tensor(a!) out, Tensor data, int[] ends, int[] starts, int[] lens, int ranks, int into, "
                  "float scale, bool seeded, int over) -> Tensor")

}  // namespace

}  // namespace gradwire::ops
