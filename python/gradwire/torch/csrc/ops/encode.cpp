// gradwire::encode_bucket: the parameters of a bucket, with states that are tensors.
//
// `pieces` is always bytes of the host: a struct `Piece` for each parameter, whose pointers are not
// read. A state is one tensor of bytes: the struct `State` in the first `state_room` of them, then the
// buffers of its memory: see `buffers_of`.
#include "bucket/encode.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bucket/complete.h"
#include "bucket/gather.h"
#include "ops/torch.h"

namespace gradwire::ops {

namespace {

constexpr std::uint64_t state_room = 1024, buffer_align = 256, frame_align = 16;
static_assert(sizeof(State) <= state_room);

constexpr std::uint64_t aligned(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

std::vector<Piece> pieces_in(const Tensor& bytes) {
    STD_TORCH_CHECK(bytes.is_cpu() && bytes.is_contiguous() && bytes.scalar_type() == ScalarType::Byte,
                    "pieces must be bytes of the host");
    const auto size = static_cast<std::size_t>(bytes.numel());
    STD_TORCH_CHECK(size % sizeof(Piece) == 0, "pieces must have ", sizeof(Piece), " bytes each: this library is of another version");
    std::vector<Piece> pieces(size / sizeof(Piece));
    if (size > 0) std::memcpy(pieces.data(), bytes.const_data_ptr(), size);
    return pieces;
}

unsigned buffers_of(MemoryKind kind) {
    if (kind == MemoryKind::none) return 0;
    return kind == MemoryKind::momentum || kind == MemoryKind::adam ? 4 : 2;
}

std::uint64_t stride_of(const Piece& piece) { return aligned(4 * piece.numel, buffer_align); }

// Points a piece to its state at `base`: `residual` twice, then `moment` twice, as far as the memory has them.
void point(Piece& piece, std::uintptr_t base) {
    piece.state = reinterpret_cast<State*>(base);
    float** const sides[4] = {&piece.residual[0], &piece.residual[1], &piece.moment[0], &piece.moment[1]};
    const unsigned buffers = buffers_of(piece.memory.kind);
    for (unsigned i = 0; i < 4; ++i)
        *sides[i] = i < buffers ? reinterpret_cast<float*>(base + state_room + i * stride_of(piece)) : nullptr;
}

void attach(Piece& piece, const Tensor& state, int device) {
    check_bytes(state, "states", device);
    const std::uint64_t expected = state_room + buffers_of(piece.memory.kind) * stride_of(piece);
    STD_TORCH_CHECK(static_cast<std::uint64_t>(state.numel()) == expected, "a state must have ", expected, " bytes, got ",
                    state.numel());
    point(piece, reinterpret_cast<std::uintptr_t>(state.mutable_data_ptr()));
}

Tensor uploaded(const std::vector<Piece>& pieces, const Tensor& like) {
    const Tensor host = pinned_bytes(pieces.size() * sizeof(Piece));
    if (!pieces.empty()) std::memcpy(host.mutable_data_ptr(), pieces.data(), pieces.size() * sizeof(Piece));
    return torch::stable::to(host, like.device(), true);
}

// What lasts from step to step of a bucket: the shape of the work, and the memory that it is done in.
struct Planned {
    std::vector<Piece> pieces;
    std::vector<std::int64_t> starts;
    EncodePlan plan;
    int device;
    Tensor select_table, select_scratch, write_table, write_scratch, selections;
};

// Never destroyed: torch, whose memory plans hold, may be gone before.
struct Plans {
    std::mutex mutex;
    std::unordered_map<std::int64_t, std::shared_ptr<Planned>> known;
    std::int64_t next = 0;

    static Plans& all() {
        static Plans* const plans = new Plans;
        return *plans;
    }
};

// Plans the encodes of parameters that begin at `starts` in tensors of the dtype and the device of `like`.
std::int64_t encode_plan(Tensor pieces, std::vector<std::int64_t> starts, Tensor like) {
    const int device = static_cast<int>(like.get_device_index());
    const DeviceGuard guard(device);
    std::vector<Piece> all = pieces_in(pieces);
    STD_TORCH_CHECK(starts.size() == all.size(), "starts must have ", all.size(), " items, got ", starts.size());
    for (Piece& piece : all) {
        piece.dtype = dtype_of(like, "like");
        piece.limit = ~std::uint64_t{0};  // whatever the limits will be
        point(piece, 0);                  // the plan asks only which buffers there are
    }
    int multiprocessors = 0;
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device < 0 ? 0 : device));
    EncodePlan plan = plan_encode(all.data(), static_cast<unsigned>(all.size()), select_blocks(static_cast<unsigned>(multiprocessors)));
    const Tensor select_scratch = device_bytes(plan.select.scratch_bytes(), like);
    check(cudaMemsetAsync(select_scratch.mutable_data_ptr(), 0, plan.select.scratch_bytes(), stream_of(device)));
    const Tensor select_table = pinned_bytes(plan.select.table_bytes()), write_table = pinned_bytes(plan.write.table_bytes());
    plan.select.fill_table(select_table.mutable_data_ptr(), select_scratch.mutable_data_ptr());
    plan.write.fill_table(write_table.mutable_data_ptr());
    const std::size_t count = all.size();
    auto planned = std::make_shared<Planned>(Planned{
        std::move(all), std::move(starts), plan, device, torch::stable::to(select_table, like.device(), true), select_scratch,
        torch::stable::to(write_table, like.device(), true), device_bytes(plan.write.scratch_bytes(), like),
        device_bytes(count * sizeof(Selection), like)});
    Plans& plans = Plans::all();
    const std::lock_guard lock(plans.mutex);
    plans.known.emplace(plans.next, std::move(planned));
    return plans.next++;
}

void encode_forget(std::int64_t plan) {
    Plans& plans = Plans::all();
    const std::lock_guard lock(plans.mutex);
    plans.known.erase(plan);
}

// Encodes and advances the states. Returns the frames, one after another, and a table of int64: see
// `OutcomeColumn`. Waits for nothing; calls with the same plan must follow one another on the device.
std::tuple<Tensor, Tensor> encode_bucket(std::int64_t plan, Tensor gradients, std::vector<std::int64_t> limits,
                                         std::vector<Tensor> states, double divisor) {
    std::shared_ptr<Planned> planned;
    {
        Plans& plans = Plans::all();
        const std::lock_guard lock(plans.mutex);
        const auto found = plans.known.find(plan);
        STD_TORCH_CHECK(found != plans.known.end(), "there is no plan ", plan);
        planned = found->second;
    }
    const int device = planned->device;
    const DeviceGuard guard(device);
    check_there(gradients, "gradients", device);
    std::vector<Piece> pieces = planned->pieces;
    const std::size_t count = pieces.size();
    STD_TORCH_CHECK(limits.size() == count && states.size() == count, "limits and states must have ", count, " items");
    const Dtype dtype = dtype_of(gradients, "gradients");
    const auto* const elements = static_cast<const std::uint8_t*>(gradients.const_data_ptr());
    const auto itemsize = static_cast<std::uint64_t>(gradients.element_size());
    std::uint64_t room = 0, most = 0;
    for (const std::int64_t limit : limits) {
        STD_TORCH_CHECK(limit >= 0, "limits must not be negative, got ", limit);
        room += aligned(static_cast<std::uint64_t>(limit), frame_align);
        most += static_cast<std::uint64_t>(limit);
    }
    const Tensor frames = device_bytes(room, gradients);
    auto* at = static_cast<std::uint8_t*>(frames.mutable_data_ptr());
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
    const cudaStream_t stream = stream_of(device);
    const Tensor there = uploaded(pieces, gradients);
    const auto* const all = static_cast<const Piece*>(there.const_data_ptr());
    auto* const selections = static_cast<Selection*>(planned->selections.mutable_data_ptr());
    check(launch_encode(planned->plan, all, selections,
                        {planned->select_table.mutable_data_ptr(), planned->write_table.mutable_data_ptr(), planned->write_scratch.mutable_data_ptr()},
                        static_cast<float>(divisor), stream));
    Tensor table = torch::stable::new_empty(gradients, {static_cast<std::int64_t>(count), outcome_columns}, ScalarType::Long);
    // One frame is in its place already.
    const Tensor out = count > 1 ? device_bytes(most, gradients) : frames;
    check(launch_gather(all, selections, static_cast<unsigned>(count), most,
                        count > 1 ? static_cast<std::uint8_t*>(out.mutable_data_ptr()) : nullptr,
                        static_cast<std::int64_t*>(table.mutable_data_ptr()), stream));
    return {out, table};
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
    check(launch_rollback(static_cast<const Piece*>(there.const_data_ptr()), static_cast<unsigned>(all.size()), stream_of(device)));
}

// The pieces with what follows from their options: see `complete`.
Tensor complete_pieces(Tensor pieces) {
    std::vector<Piece> all = pieces_in(pieces);
    for (Piece& piece : all) complete(piece);
    const Tensor out = torch::stable::new_empty(pieces, {pieces.numel()}, ScalarType::Byte);
    if (!all.empty()) std::memcpy(out.mutable_data_ptr(), all.data(), all.size() * sizeof(Piece));
    return out;
}

}  // namespace

}  // namespace gradwire::ops

GRADWIRE_SCHEMAS(m) {
    m.def("complete_pieces(Tensor pieces) -> Tensor");
    m.def("encode_plan(Tensor pieces, int[] starts, Tensor like) -> int");
    m.def("encode_forget(int plan) -> ()");
    m.def("encode_bucket(int plan, Tensor gradients, int[] limits, Tensor(a!)[] states, float divisor) -> (Tensor, Tensor)");
    m.def("rollback_bucket(Tensor pieces, Tensor(a!)[] states) -> ()");
}

GRADWIRE_HOST_FUNCTIONS(m) {
    m.impl("complete_pieces", TORCH_BOX(&gradwire::ops::complete_pieces));
    m.impl("encode_forget", TORCH_BOX(&gradwire::ops::encode_forget));
}

GRADWIRE_KERNELS(m) {
    m.impl("encode_plan", TORCH_BOX(&gradwire::ops::encode_plan));
    m.impl("encode_bucket", TORCH_BOX(&gradwire::ops::encode_bucket));
    m.impl("rollback_bucket", TORCH_BOX(&gradwire::ops::rollback_bucket));
}
