// gradwire::encode_bucket: the parameters of a bucket, with states that are tensors.
//
// `pieces` is always bytes of the host: a struct `Piece` for each parameter, whose pointers are not
// read.
#include "bucket/gather.h"
#include "ops/plan.h"

namespace gradwire::ops {

namespace {

constexpr std::uint64_t frame_align = 16;

// Points pieces to their positions, one piece's after another: where a count is not -1, it is of those
// that are given, or for a piece without any, how many entries to select at most.
void support(std::vector<Piece>& pieces, const Tensor& positions, const std::vector<std::int64_t>& counts, int device) {
    const std::size_t count = pieces.size();
    STD_TORCH_CHECK(counts.empty() || counts.size() == count, "supports must have ", count, " items");
    check_there(positions, "positions", device);
    STD_TORCH_CHECK(positions.scalar_type() == ScalarType::Int, "positions must have dtype torch.int32");
    const auto* at = data_of<const std::uint32_t>(positions);
    std::int64_t left = positions.numel();
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t here = counts.empty() ? -1 : counts[i];
        if (here >= 0 && pieces[i].given == 0 && pieces[i].sparsify.kind == Sparsifier::topk) {
            pieces[i].sparsify.counted = 1;
            pieces[i].sparsify.k = static_cast<std::uint64_t>(here);
            continue;
        }
        STD_TORCH_CHECK((here >= 0) == (pieces[i].given != 0), "positions must be given where that was planned for");
        if (here < 0) continue;
        STD_TORCH_CHECK(here <= left && static_cast<std::uint64_t>(here) <= pieces[i].support_count, "there must be room for positions, and as many as supports say");
        pieces[i].support = at;
        pieces[i].support_count = static_cast<std::uint64_t>(here);
        at += here;
        left -= here;
    }
}

// Encodes and advances the states. Writes the frames to `out`, one after another, which has room for all
// limits; returns a table of int64: see `OutcomeColumn`. Waits for nothing; calls with the same plan, and
// with the same scratch memory, must follow one another on the device.
Tensor encode_bucket(std::int64_t plan, Tensor gradients, std::vector<std::int64_t> limits, std::vector<Tensor> states,
                     double divisor, Tensor out, Tensor scratch, Tensor positions, std::vector<std::int64_t> supports) {
    const std::shared_ptr<Planned> planned = planned_at(plan);
    const int device = planned->device;
    const DeviceGuard guard(device);
    check_there(gradients, "gradients", device);
    std::vector<Piece> pieces = planned->pieces;
    const std::size_t count = pieces.size();
    STD_TORCH_CHECK(limits.size() == count && states.size() == count, "limits and states must have ", count, " items");
    const Dtype dtype = dtype_of(gradients, "gradients");
    const auto* const elements = data_of<const std::uint8_t>(gradients);
    const auto itemsize = static_cast<std::uint64_t>(gradients.element_size());
    std::uint64_t room = 0, most = 0;
    for (const std::int64_t limit : limits) {
        STD_TORCH_CHECK(limit >= 0, "limits must not be negative, got ", limit);
        room += aligned(static_cast<std::uint64_t>(limit), frame_align);
        most += static_cast<std::uint64_t>(limit);
    }
    check_bytes(out, "out", device);
    auto* const final = data_of<std::uint8_t>(out);
    STD_TORCH_CHECK(static_cast<std::uint64_t>(out.numel()) >= most, "out must have ", most, " bytes, got ", out.numel());
    STD_TORCH_CHECK(reinterpret_cast<std::uintptr_t>(final) % frame_align == 0, "out must begin at a multiple of ", frame_align, " bytes");
    // One frame is written where it is to be.
    const Tensor frames = count > 1 ? device_bytes(room, gradients) : out;
    auto* at = data_of<std::uint8_t>(frames);
    for (std::size_t i = 0; i < count; ++i) {
        Piece& piece = pieces[i];
        const std::int64_t start = planned->starts[i];
        STD_TORCH_CHECK(piece.dtype == dtype, "gradients must have the dtype that was planned for");
        STD_TORCH_CHECK(0 <= start && start + static_cast<std::int64_t>(piece.numel) <= gradients.numel(), "gradients must have more entries");
        attach(piece, states[i], device);
        piece.gradient = elements + static_cast<std::uint64_t>(start) * itemsize;
        piece.limit = static_cast<std::uint64_t>(limits[i]);
        piece.frame = at;
        at += aligned(piece.limit, frame_align);
    }
    support(pieces, positions, supports, device);
    place(*planned, scratch);
    const cudaStream_t stream = stream_of(device);
    const Tensor there = uploaded(pieces, gradients);
    // All memory is taken before the first launch: without it states are as before.
    Tensor table = torch::stable::new_empty(gradients, {static_cast<std::int64_t>(count), outcome_columns}, ScalarType::Long);
    const auto* const all = data_of<const Piece>(there);
    auto* const outcomes = data_of<std::int64_t>(table);
    check(launch_encode(planned->plan, all, data_of<Selection>(planned->selections),
                        {data_of<void>(planned->select_table), data_of<void>(planned->write_table),
                         data_of<std::uint8_t>(scratch) + planned->plan.select.scratch_bytes},
                        static_cast<float>(divisor), planned->plan.may_exceed(pieces.data()), outcomes, stream));
    if (count > 1) check(launch_gather(all, static_cast<unsigned>(count), most, final, outcomes, stream));
    return table;
}

// Undoes the last encode of each state that can.
void rollback_bucket(Tensor pieces, std::vector<Tensor> states) {
    std::vector<Piece> all = pieces_in(pieces);
    STD_TORCH_CHECK(states.size() == all.size(), "states must have ", all.size(), " items, got ", states.size());
    if (all.empty()) return;
    const int device = static_cast<int>(states[0].get_device_index());
    const DeviceGuard guard(device);
    for (std::size_t i = 0; i < all.size(); ++i) attach(all[i], states[i], device);
    const Tensor there = uploaded(all, states[0]);
    check(launch_rollback(data_of<const Piece>(there), static_cast<unsigned>(all.size()), stream_of(device)));
}

GRADWIRE_OPERATOR(GRADWIRE_KERNELS, encode_bucket,
                  "(int plan, Tensor gradients, int[] limits, Tensor(a!)[] states, float divisor, Tensor(b!) out, "
                  "Tensor(c!) scratch, Tensor positions, int[] supports) -> Tensor")
GRADWIRE_OPERATOR(GRADWIRE_KERNELS, rollback_bucket, "(Tensor pieces, Tensor(a!)[] states) -> ()")

}  // namespace

}  // namespace gradwire::ops
