// The slot of a rank: a header, a record of each frame, dense entries, and the frames one after another.
//
// Kernels write its front and find the frames in the slots of all ranks, so that the host need not know
// how an encode ended before others have its frames. What a front means is in exchange/wire.py.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "bucket/decode.h"

namespace gradwire {

// In words of eight bytes, as exchange/wire.py packs them: the status is byte 4 of the first word, and
// the checksum of an average is in the last three.
constexpr unsigned header_begins = 3, header_nbytes_at = 3, header_total_at = 6, header_size = 7;
constexpr unsigned status_bit = 32, status_non_finite = 1, status_failed = 2;
// Of an error: entries that are not finite, position of the first, rank; then a text.
constexpr unsigned error_words = 3, record_words = 3;

// What does not change from step to step, in memory of the device.
struct SlotFacts {
    const std::uint64_t* texts_at;    // where the text of each begins: frames, dense parameters, and what
                                      // precedes a name where no other words are known; and the end
    const std::uint64_t* dense_ends;  // where each dense parameter begins among the dense entries; and the end
    const std::uint64_t* widths;      // numbers of one of its entries
    const std::uint8_t* texts;
};

struct SlotFront {
    std::uint8_t* slot;
    std::uint64_t records_at, dense_at, nbytes;  // bytes; so many at most are written
    std::uint64_t header[header_size];           // without an error
    const std::int64_t* total;                   // of the checksum, where it is not in the header
    const std::int64_t* table;                   // see `OutcomeColumn`
    std::uint32_t frames, dense;                 // how many
    bool tells_zero;
    std::int32_t rank;
    SlotFacts facts;
    unsigned long long* found;  // of each dense parameter, as `examine_dense` writes them
};

// Writes the front of a slot from the table and the dense entries: a header and records, or the error of
// the first parameter that failed. `found` has two words for each dense parameter.
cudaError_t write_front(const SlotFront& front, const void* values, Dtype dtype, std::uint64_t numel, cudaStream_t stream);

struct Slots {
    const std::uint8_t* bytes;  // one after another, of `stride` bytes each
    std::uint64_t stride, records_at, frames_at;
    std::uint64_t header[header_begins];  // that of a rank begins with these words, if all is well
};

// Puts the frames of all slots where `call` expects them, in whose `frames` are the limits before, as
// lengths. What does not keep to them, or has another header, becomes a frame of no bytes, which is
// refused; what all ranks call zero is no frame at all.
cudaError_t locate_frames(const Slots& slots, FrameAt* frames, std::uint32_t tensors, std::uint32_t ranks,
                          cudaStream_t stream);

}  // namespace gradwire
