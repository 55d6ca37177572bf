// gradwire::encode_plan: what is known of a bucket before it is encoded.
#include "ops/plan.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace gradwire::ops {

namespace {

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

Planned made(std::vector<Piece> pieces, std::vector<std::int64_t> starts, const Tensor& like) {
    const int device = static_cast<int>(like.get_device_index());
    unsigned blocks = 0;
    check(select_blocks(device < 0 ? 0 : device, blocks));
    const std::size_t count = pieces.size();
    EncodePlan plan = plan_encode(pieces.data(), static_cast<unsigned>(count), blocks);
    const std::uint64_t lasting = plan.select.kept_bytes;
    const Tensor kept = device_bytes(lasting, like);
    if (lasting > 0) check(cudaMemsetAsync(kept.mutable_data_ptr(), 0, lasting, stream_of(device)));
    const Tensor table = pinned_bytes(plan.write.table_bytes());
    plan.write.fill_table(table.mutable_data_ptr());
    const Tensor select_table = device_bytes(plan.select.table_bytes(), like);
    return {std::move(pieces), std::move(starts), std::move(plan), device, kept, select_table,
            torch::stable::to(table, like.device(), true), device_bytes(count * sizeof(Selection), like), nullptr};
}

// Plans the encodes of parameters that begin at `starts` in tensors of the dtype and the device of `like`.
std::int64_t encode_plan(Tensor pieces, std::vector<std::int64_t> starts, Tensor like) {
    const DeviceGuard guard(static_cast<int>(like.get_device_index()));
    std::vector<Piece> all = pieces_in(pieces);
    STD_TORCH_CHECK(starts.size() == all.size(), "starts must have ", all.size(), " items, got ", starts.size());
    for (Piece& piece : all) {
        piece.dtype = dtype_of(like, "like");
        piece.limit = ~std::uint64_t{0};  // whatever the limits will be
    }
    auto planned = std::make_shared<Planned>(made(std::move(all), std::move(starts), like));
    Plans& plans = Plans::all();
    const std::lock_guard lock(plans.mutex);
    plans.known.emplace(plans.next, std::move(planned));
    return plans.next++;
}

// Bytes of scratch memory that the plan works in. Where so many positions are given for a parameter,
// and not -1, more than before, there is room for a half more from now on.
std::int64_t encode_room(std::int64_t plan, std::vector<std::int64_t> supports) {
    const std::shared_ptr<Planned> planned = planned_at(plan);
    std::vector<Piece> pieces = planned->pieces;
    STD_TORCH_CHECK(supports.size() <= pieces.size(), "supports must have ", pieces.size(), " items");
    bool grown = false;
    for (std::size_t i = 0; i < supports.size(); ++i) {
        const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(supports[i], 0));
        if (pieces[i].given == 0 || count <= pieces[i].support_count) continue;
        pieces[i].support_count = std::min(count + count / 2, std::max(count, pieces[i].numel));
        grown = true;
    }
    if (grown) {
        const DeviceGuard guard(planned->device);
        *planned = made(std::move(pieces), planned->starts, planned->selections);
    }
    return static_cast<std::int64_t>(planned->scratch_bytes());
}

void encode_forget(std::int64_t plan) {
    Plans& plans = Plans::all();
    const std::lock_guard lock(plans.mutex);
    plans.known.erase(plan);
}

// The pieces with what follows from their options: see `complete`.
Tensor complete_pieces(Tensor pieces) {
    std::vector<Piece> all = pieces_in(pieces);
    for (Piece& piece : all) complete(piece);
    const Tensor out = torch::stable::new_empty(pieces, {pieces.numel()}, ScalarType::Byte);
    if (!all.empty()) std::memcpy(out.mutable_data_ptr(), all.data(), all.size() * sizeof(Piece));
    return out;
}

GRADWIRE_OPERATOR(GRADWIRE_HOST_FUNCTIONS, complete_pieces, "(Tensor pieces) -> Tensor")
GRADWIRE_OPERATOR(GRADWIRE_KERNELS, encode_plan, "(Tensor pieces, int[] starts, Tensor like) -> int")
GRADWIRE_OPERATOR(GRADWIRE_HOST_FUNCTIONS, encode_room, "(int plan, int[] supports) -> int")
GRADWIRE_OPERATOR(GRADWIRE_HOST_FUNCTIONS, encode_forget, "(int plan) -> ()")

}  // namespace

std::shared_ptr<Planned> planned_at(std::int64_t number) {
    Plans& plans = Plans::all();
    const std::lock_guard lock(plans.mutex);
    const auto found = plans.known.find(number);
    STD_TORCH_CHECK(found != plans.known.end(), "there is no plan ", number);
    return found->second;
}

void place(Planned& planned, const Tensor& scratch) {
    check_bytes(scratch, "scratch", planned.device);
    const std::uint64_t needed = planned.scratch_bytes();
    STD_TORCH_CHECK(static_cast<std::uint64_t>(scratch.numel()) >= needed, "scratch must have ", needed, " bytes");
    void* const at = scratch.mutable_data_ptr();
    if (planned.scratch == at) return;
    const SelectPlan& plan = planned.plan.select;
    const Tensor table = pinned_bytes(plan.table_bytes());
    plan.fill_table(table.mutable_data_ptr(), planned.kept.mutable_data_ptr(), at);
    planned.select_table = torch::stable::to(table, scratch.device(), true);
    planned.scratch = at;
}

}  // namespace gradwire::ops
