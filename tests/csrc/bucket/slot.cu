// Entry points for test_slot.py.
#include "bucket/slot.h"

using namespace gradwire;

extern "C" int gradwire_test_write_front(std::uint8_t* slot, const std::uint64_t* places, const std::uint64_t* header,
                                         const std::int64_t* total, const std::int64_t* table, std::uint64_t frames,
                                         std::uint64_t dense, std::uint64_t tells_zero, std::uint64_t rank,
                                         const std::uint64_t* texts_at, const std::uint64_t* dense_ends,
                                         const std::uint64_t* widths, const std::uint8_t* texts, unsigned long long* found,
                                         const void* values, std::uint64_t dtype, std::uint64_t numel) {
    SlotFront front{};
    front.slot = slot;
    front.records_at = places[0];
    front.dense_at = places[1];
    front.nbytes = places[2];
    for (unsigned i = 0; i < header_size; ++i) front.header[i] = header[i];
    front.total = total;
    front.table = table;
    front.frames = unsigned(frames);
    front.dense = unsigned(dense);
    front.tells_zero = tells_zero != 0;
    front.rank = int(rank);
    front.facts = {texts_at, dense_ends, widths, texts};
    front.found = found;
    return write_front(front, values, Dtype(dtype), numel, nullptr);
}

extern "C" int gradwire_test_locate_frames(const std::uint8_t* bytes, const std::uint64_t* places, const std::uint64_t* header,
                                           FrameAt* frames, std::uint64_t tensors, std::uint64_t ranks) {
    Slots slots{};
    slots.bytes = bytes;
    slots.records_at = places[0];
    slots.frames_at = places[1];
    slots.stride = places[2];
    for (unsigned i = 0; i < header_begins; ++i) slots.header[i] = header[i];
    return locate_frames(slots, frames, unsigned(tensors), unsigned(ranks), nullptr);
}
