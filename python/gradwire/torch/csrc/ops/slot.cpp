// gradwire::write_front and gradwire::decode_slots: what goes between ranks, without the host.
#include "bucket/slot.h"
#include "ops/reading.h"

namespace gradwire::ops {

namespace {

template <std::size_t Count>
void copy_words(const std::vector<std::int64_t>& from, std::uint64_t (&to)[Count], const char* name) {
    STD_TORCH_CHECK(from.size() == Count, name, " must have ", Count, " items, got ", from.size());
    for (std::size_t i = 0; i < Count; ++i) to[i] = static_cast<std::uint64_t>(from[i]);
}

std::uint8_t* words_of(const Tensor& tensor, const char* name, std::uint64_t nbytes, int device) {
    check_bytes(tensor, name, device);
    auto* const at = data_of<std::uint8_t>(tensor);
    STD_TORCH_CHECK(static_cast<std::uint64_t>(tensor.numel()) >= nbytes, name, " must have ", nbytes, " bytes, got ", tensor.numel());
    STD_TORCH_CHECK(reinterpret_cast<std::uintptr_t>(at) % 8 == 0, name, " must begin at a multiple of 8 bytes");
    return at;
}

// Writes the first bytes of a slot: see `write_front` in bucket/slot.h. `places` has where records and dense
// entries begin, and how many bytes are written at most; `facts` is bytes, `SlotFacts` one after another;
// `total` is one number, or empty. `values` are the dense entries, of so many parameters. Waits for nothing.
void write_slot(Tensor slot, Tensor table, Tensor values, Tensor facts, Tensor total, std::vector<std::int64_t> header,
                std::vector<std::int64_t> places, std::int64_t dense, std::int64_t rank, bool tells_zero) {
    const int device = static_cast<int>(slot.get_device_index());
    const DeviceGuard guard(device);
    std::uint64_t at[3];
    copy_words(places, at, "places");
    SlotFront front{};
    front.records_at = at[0];
    front.dense_at = at[1];
    front.nbytes = at[2];
    copy_words(header, front.header, "header");
    STD_TORCH_CHECK(8 * (header_size + error_words) <= front.nbytes && front.dense_at <= front.nbytes && front.dense_at % 8 == 0 &&
                        front.records_at % 8 == 0 && 8 * header_size <= front.records_at,
                    "places must be those of a slot");
    front.slot = words_of(slot, "slot", front.nbytes, device);
    check_there(table, "table", device);
    STD_TORCH_CHECK(table.scalar_type() == ScalarType::Long && table.numel() % outcome_columns == 0, "table must be one of encodes");
    front.table = data_of<const std::int64_t>(table);
    front.frames = static_cast<std::uint32_t>(table.numel() / outcome_columns);
    STD_TORCH_CHECK(dense >= 0, "dense must not be negative, got ", dense);
    front.dense = static_cast<std::uint32_t>(dense);
    STD_TORCH_CHECK(front.records_at + std::uint64_t{8 * record_words} * front.frames <= front.dense_at, "places must leave room for records");
    const std::uint64_t texts = std::uint64_t{front.frames} + front.dense + 2, words = texts + 2 * std::uint64_t{front.dense} + 1;
    auto* const known = reinterpret_cast<std::uint64_t*>(words_of(facts, "facts", 8 * words, device));
    front.facts = {known, known + texts, known + texts + front.dense + 1, reinterpret_cast<std::uint8_t*>(known + words)};
    check_there(total, "total", device);
    STD_TORCH_CHECK(total.numel() == 0 || total.scalar_type() == ScalarType::Long, "total must have dtype torch.int64");
    front.total = total.numel() > 0 ? data_of<const std::int64_t>(total) : nullptr;
    front.rank = static_cast<std::int32_t>(rank);
    front.tells_zero = tells_zero;
    check_there(values, "values", device);
    const Tensor found = device_bytes(16 * std::uint64_t{front.dense}, slot);
    front.found = data_of<unsigned long long>(found);
    check(write_front(front, values.const_data_ptr(), dtype_of(values, "values"), static_cast<std::uint64_t>(values.numel()),
                      stream_of(device)));
}

// Averages into `out[ends[2 i] : ends[2 i + 1]]` the frames of the slots of all ranks, of at most `limits[i]`
// bytes each: see `locate_frames`. Of the slots, `places` has where records and frames begin and how long each
// is; `header` is what each begins with. Returns what `decode_bucket` does. Waits for nothing.
Tensor decode_slots(Tensor out, Tensor data, std::vector<std::int64_t> ends, std::vector<std::int64_t> limits,
                    std::vector<std::int64_t> places, std::vector<std::int64_t> header, std::int64_t ranks, std::int64_t into,
                    double scale, bool seeded) {
    const int device = static_cast<int>(out.get_device_index());
    const DeviceGuard guard(device);
    std::uint64_t at[3];
    copy_words(places, at, "places");
    Slots slots{};
    slots.records_at = at[0];
    slots.frames_at = at[1];
    slots.stride = at[2];
    copy_words(header, slots.header, "header");
    STD_TORCH_CHECK(ranks >= 1, "ranks must be positive, got ", ranks);
    slots.bytes = words_of(data, "data", slots.stride * static_cast<std::uint64_t>(ranks), device);
    const std::vector<Target> targets = targets_of(out, ends, into, device);
    const std::size_t tensors = targets.size();
    STD_TORCH_CHECK(limits.size() == tensors, "limits must have ", tensors, " items, got ", limits.size());
    std::uint64_t end = slots.frames_at;
    std::vector<std::int64_t> starts, lens;
    for (const std::int64_t limit : limits) {
        STD_TORCH_CHECK(limit >= 0, "limits must not be negative, got ", limit);
        end += static_cast<std::uint64_t>(limit);
        // Where frames begin is not known yet; that many bytes are there.
        starts.insert(starts.end(), static_cast<std::size_t>(ranks), 0);
        lens.insert(lens.end(), static_cast<std::size_t>(ranks), limit);
    }
    STD_TORCH_CHECK(slots.stride % 8 == 0 && slots.records_at % 8 == 0 && 8 * header_size <= slots.records_at && end <= slots.stride &&
                        slots.records_at + 8 * record_words * tensors <= slots.frames_at,
                    "places must be those of slots");
    Reading reading = reading_of(targets, data, starts, lens, ranks, seeded);
    reading.call.into = static_cast<Into>(into);
    reading.call.scale = scale;
    const cudaStream_t stream = stream_of(device);
    check(locate_frames(slots, const_cast<FrameAt*>(reading.call.frames), reading.call.tensors, reading.call.ranks, stream));
    check(decode(reading.call, stream));
    return reading.result;
}

GRADWIRE_OPERATOR(GRADWIRE_KERNELS, write_slot,
                  "(Tensor(a!) slot, Tensor table, Tensor values, Tensor facts, Tensor total, int[] header, int[] places, "
                  "int dense, int rank, bool tells_zero) -> ()")
GRADWIRE_OPERATOR(GRADWIRE_KERNELS, decode_slots,
                  "(Tensor(a!) out, Tensor data, int[] ends, int[] limits, int[] places, int[] header, int ranks, int into, "
                  "float scale, bool seeded) -> Tensor")

}  // namespace

}  // namespace gradwire::ops
