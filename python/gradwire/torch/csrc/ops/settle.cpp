// gradwire::settle_bucket: the second half of encodes of parameters whose memories have one buffer.
#include "ops/pieces.h"
#include "ops/reading.h"

namespace gradwire::ops {

namespace {

// Makes of memories what `encode_bucket` would have made of them, from the gradients, of which the parameters
// begin at `begins`, and the frames `data[starts[i] : starts[i] + lens[i]]` that its first half has written.
// Returns int32: `Settled` of each. Waits for nothing.
Tensor settle_bucket(Tensor pieces, Tensor gradients, std::vector<std::int64_t> begins, std::vector<Tensor> states,
                     Tensor data, std::vector<std::int64_t> starts, std::vector<std::int64_t> lens, double divisor,
                     bool seeded) {
    const int device = static_cast<int>(gradients.get_device_index());
    const DeviceGuard guard(device);
    check_there(gradients, "gradients", device);
    check_bytes(data, "data", device);
    std::vector<Piece> all = pieces_in(pieces);
    const std::size_t count = all.size();
    STD_TORCH_CHECK(begins.size() == count && states.size() == count, "begins and states must have ", count, " items");
    const Dtype dtype = dtype_of(gradients, "gradients");
    const auto* const elements = static_cast<const std::uint8_t*>(gradients.const_data_ptr());
    std::vector<Target> targets;
    for (std::size_t i = 0; i < count; ++i) {
        Piece& piece = all[i];
        STD_TORCH_CHECK(piece.memory.low_memory != 0, "only memories of one buffer have a second half to come");
        STD_TORCH_CHECK(0 <= begins[i] && begins[i] + static_cast<std::int64_t>(piece.numel) <= gradients.numel(), "gradients must have more entries");
        attach(piece, states[i], device);
        piece.dtype = dtype;
        piece.gradient = elements + begins[i] * gradients.element_size();
        targets.push_back({nullptr, piece.numel, dtype});
    }
    Reading reading = reading_of(targets, data, starts, lens, 1, seeded);
    const Tensor there = uploaded(all, gradients);
    Tensor outcomes = torch::stable::new_empty(data, {static_cast<std::int64_t>(count)}, ScalarType::Int);
    const Settle order{static_cast<const Piece*>(there.const_data_ptr()), static_cast<float>(divisor),
                       static_cast<std::uint32_t*>(outcomes.mutable_data_ptr())};
    check(settle(reading.call, order, reading.tiles_of_frames, reading.tiles_of_targets, stream_of(device)));
    return outcomes;
}

}  // namespace

}  // namespace gradwire::ops

GRADWIRE_SCHEMAS(m) {
    m.def(
        "settle_bucket(Tensor pieces, Tensor gradients, int[] begins, Tensor(a!)[] states, Tensor data, int[] starts, "
        "int[] lens, float divisor, bool seeded) -> Tensor");
}

GRADWIRE_KERNELS(m) { m.impl("settle_bucket", TORCH_BOX(&gradwire::ops::settle_bucket)); }
