// gradwire::frame_heads and gradwire::absorb_bucket: what owners of ranges do with the parts of all ranks,
// besides decoding them and encoding their sums.
#include "bucket/gather.h"
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
    STD_TORCH_CHECK(most >= 0, "most must not be negative, got ", most);
    check_ranges(bounds, "bounds", data.numel());
    const auto messages = static_cast<std::int64_t>(bounds.size() / 2);
    const Tensor there = uploaded(bounds, data);
    Tensor table = torch::stable::new_empty(data, {messages, most, head_columns}, ScalarType::Long);
    check(launch_heads(data_of<const std::uint8_t>(data), data_of<const std::int64_t>(there),
                       static_cast<std::uint64_t>(messages), static_cast<std::uint64_t>(most),
                       data_of<std::int64_t>(table), stream_of(device)));
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
    check_ranges(ends, "ends", sums.numel());
    std::vector<Target> targets;
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t begin = ends[2 * i], end = ends[2 * i + 1];
        STD_TORCH_CHECK(all[i].memory.kind != MemoryKind::none, "what is left goes to residuals");
        STD_TORCH_CHECK(0 <= begins[i] && begins[i] + (end - begin) <= static_cast<std::int64_t>(all[i].numel),
                        "a tensor must have the entries whose sums there are");
        attach(all[i], states[i], device);
        targets.push_back({data_of<float>(sums) + begin, static_cast<std::uint64_t>(end - begin), Dtype::f32});
    }
    Reading reading = reading_of(targets, data, starts, lens, 1, false);
    const Tensor there = uploaded(all, sums), from = uploaded(begins, sums);
    std::vector<std::int64_t> none(2 * count);
    for (std::size_t i = 0; i < count; ++i) none[2 * i + 1] = -1;  // as unsigned, above all positions
    Tensor outcomes = uploaded(none, sums);
    const Absorb order{data_of<const Piece>(there), data_of<const std::uint64_t>(from),
                       data_of<unsigned long long>(outcomes)};
    check(absorb(reading.call, order, stream_of(device)));
    return outcomes;
}

GRADWIRE_OPERATOR(GRADWIRE_KERNELS, frame_heads, "(Tensor data, int[] bounds, int most) -> Tensor")
GRADWIRE_OPERATOR(GRADWIRE_KERNELS, absorb_bucket,
                  "(Tensor pieces, Tensor(a!)[] states, int[] begins, Tensor sums, int[] ends, Tensor data, int[] starts, "
                  "int[] lens) -> Tensor")

}  // namespace

}  // namespace gradwire::ops
