// gradwire::frame_heads and gradwire::absorb_bucket: what owners of ranges do with the parts of all ranks,
// besides decoding them and encoding their sums.
#include "bucket/heads.h"
#include "ops/pieces.h"
#include "ops/reading.h"

namespace gradwire::ops {

namespace {

// Where frames follow one another in the messages `data[bounds[2 i] : bounds[2 i + 1]]`, at most so many in
// each. Returns int64 of shape (messages, most, 4): see `HeadColumn`. Waits for nothing.
Tensor frame_heads(Tensor data, std::vector<std::int64_t> bounds, std::int64_t most) {
    const int device = static_cast<int>(data.get_device_index());
    const DeviceGuard guard(device);
    check_bytes(data, "data", device);
    STD_TORCH_CHECK(bounds.size() % 2 == 0 && most >= 0, "bounds must be pairs, and most not negative");
    const auto messages = static_cast<std::int64_t>(bounds.size() / 2);
    for (std::size_t i = 0; i < bounds.size(); i += 2)
        STD_TORCH_CHECK(0 <= bounds[i] && bounds[i] <= bounds[i + 1] && bounds[i + 1] <= data.numel(),
                        "bounds must be ranges of data, got ", bounds[i], " to ", bounds[i + 1]);
    const Tensor there = uploaded(bounds, data);
    Tensor table = torch::stable::new_empty(data, {messages, most, head_columns}, ScalarType::Long);
    check(launch_heads(static_cast<const std::uint8_t*>(data.const_data_ptr()),
                       static_cast<const std::int64_t*>(there.const_data_ptr()), static_cast<std::uint64_t>(messages),
                       static_cast<std::uint64_t>(most), static_cast<std::int64_t*>(table.mutable_data_ptr()), stream_of(device)));
    return table;
}

// Adds to the residuals of the entries from `begins` on what is left of `sums[ends[2 i] : ends[2 i + 1]]`
// behind the frames `data[starts[i] : starts[i] + lens[i]]`. Returns bytes of int64, two for each: how many
// entries would not be finite, and the first of them. Waits for nothing.
Tensor absorb_bucket(Tensor pieces, std::vector<Tensor> states, std::vector<std::int64_t> begins, Tensor sums,
                     std::vector<std::int64_t> ends, Tensor data, std::vector<std::int64_t> starts,
                     std::vector<std::int64_t> lens) {
    const int device = static_cast<int>(sums.get_device_index());
    const DeviceGuard guard(device);
    check_there(sums, "sums", device);
    check_bytes(data, "data", device);
    STD_TORCH_CHECK(sums.scalar_type() == ScalarType::Float, "sums must have dtype torch.float32");
    std::vector<Piece> all = pieces_in(pieces);
    const std::size_t count = all.size();
    STD_TORCH_CHECK(begins.size() == count && states.size() == count && ends.size() == 2 * count,
                    "begins, states and ends must be of ", count, " pieces");
    auto* const values = static_cast<float*>(sums.mutable_data_ptr());
    std::vector<Target> targets;
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t begin = ends[2 * i], end = ends[2 * i + 1];
        STD_TORCH_CHECK(0 <= begin && begin <= end && end <= sums.numel(), "ends must be ranges of sums");
        STD_TORCH_CHECK(all[i].memory.kind != MemoryKind::none, "what is left goes to residuals");
        STD_TORCH_CHECK(0 <= begins[i] && begins[i] + (end - begin) <= static_cast<std::int64_t>(all[i].numel),
                        "a tensor must have the entries whose sums there are");
        attach(all[i], states[i], device);
        targets.push_back({values + begin, static_cast<std::uint64_t>(end - begin), Dtype::f32});
    }
    Reading reading = reading_of(targets, data, starts, lens, 1, false);
    const Tensor there = uploaded(all, sums), from = uploaded(begins, sums);
    std::vector<std::int64_t> none(2 * count);
    for (std::size_t i = 0; i < count; ++i) none[2 * i + 1] = -1;  // as unsigned, above all positions
    Tensor outcomes = uploaded(none, sums);
    const Absorb order{static_cast<const Piece*>(there.const_data_ptr()), static_cast<const std::uint64_t*>(from.const_data_ptr()),
                       static_cast<unsigned long long*>(outcomes.mutable_data_ptr())};
    check(absorb(reading.call, order, reading.tiles_of_frames, reading.tiles_of_targets, stream_of(device)));
    return outcomes;
}

}  // namespace

}  // namespace gradwire::ops

GRADWIRE_SCHEMAS(m) {
    m.def("frame_heads(Tensor data, int[] bounds, int most) -> Tensor");
    m.def(
        "absorb_bucket(Tensor pieces, Tensor(a!)[] states, int[] begins, Tensor sums, int[] ends, Tensor data, int[] starts, "
        "int[] lens) -> Tensor");
}

GRADWIRE_KERNELS(m) {
    m.impl("frame_heads", TORCH_BOX(&gradwire::ops::frame_heads));
    m.impl("absorb_bucket", TORCH_BOX(&gradwire::ops::absorb_bucket));
}
