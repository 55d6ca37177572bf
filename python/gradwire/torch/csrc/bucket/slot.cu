// Fronts of slots: what was encoded says what is written, and what was gathered where frames are.
#include "bucket/slot.h"

#include "device/block.cuh"
#include "device/probe.h"
#include "device/segments.cuh"

namespace gradwire {

namespace {

constexpr unsigned threads = 256;
constexpr std::uint64_t tile_entries = 4096;

// Whether all bits of the exponent are set.
__device__ bool is_finite(const void* values, Dtype dtype, std::uint64_t at) {
    constexpr std::uint64_t exponent64 = 0x7ff0000000000000;
    constexpr std::uint32_t exponent32 = 0x7f800000, exponent16 = 0x7c00, exponent_brain = 0x7f80;
    switch (dtype) {
        case Dtype::f64: return (static_cast<const std::uint64_t*>(values)[at] & exponent64) != exponent64;
        case Dtype::f32: return (static_cast<const std::uint32_t*>(values)[at] & exponent32) != exponent32;
        case Dtype::f16: return (static_cast<const std::uint16_t*>(values)[at] & exponent16) != exponent16;
        case Dtype::bf16: return (static_cast<const std::uint16_t*>(values)[at] & exponent_brain) != exponent_brain;
    }
    return false;
}

// Counts what is not finite of each parameter; beside it, the complement of the first one's position.
__global__ void __launch_bounds__(threads) examine_dense(const void* values, Dtype dtype, std::uint64_t numel,
                                                         SlotFacts facts, std::uint32_t dense, unsigned long long* found) {
    const std::uint64_t begin = static_cast<std::uint64_t>(blockIdx.x) * tile_entries;
    const std::uint64_t end = begin + tile_entries < numel ? begin + tile_entries : numel;
    for (std::uint64_t at = begin + threadIdx.x; at < end; at += threads) {
        if (is_finite(values, dtype, at)) continue;
        const unsigned parameter = segment_of(facts.dense_ends, dense, at);
        const std::uint64_t width = facts.widths[parameter], offset = at - facts.dense_ends[parameter];
        bool first = true;  // of its entry
        for (std::uint64_t before = offset % width; before > 0; --before) first &= is_finite(values, dtype, at - before);
        if (!first) continue;
        atomicAdd(&found[2 * parameter], 1ull);
        atomicMax(&found[2 * parameter + 1], ~static_cast<unsigned long long>(offset / width));
    }
}

// The size that a frame would have without a limit, to within a few per cent.
__device__ std::uint64_t wanted(const std::int64_t* row) {
    const std::uint64_t nbytes = static_cast<std::uint64_t>(row[outcome_nbytes]);
    const std::uint64_t count = static_cast<std::uint64_t>(row[outcome_count]);
    const std::uint64_t trimmed = static_cast<std::uint64_t>(row[outcome_trimmed]);
    return trimmed == 0 ? nbytes : pieces(nbytes * (count + trimmed), count > 0 ? count : 1);
}

__device__ std::uint64_t good_word(const SlotFront& front, std::uint64_t word) {
    if (word < header_size) {
        const bool there = word == header_total_at && front.total != nullptr;
        return there ? static_cast<std::uint64_t>(*front.total) : front.header[word];
    }
    const std::uint64_t first = front.records_at / 8;
    if (word < first || word - first >= std::uint64_t{front.frames} * record_words) return 0;
    const std::int64_t* const row = front.table + (word - first) / record_words * outcome_columns;
    switch ((word - first) % record_words) {
        case 0: return static_cast<std::uint64_t>(row[outcome_nbytes]);
        case 1: return wanted(row);
        default: return front.tells_zero ? static_cast<std::uint64_t>(row[outcome_zero]) : 0;
    }
}

// An error of a parameter as a message, byte by byte.
struct Message {
    std::uint64_t head[header_size + error_words];
    std::uint64_t prefix, stop;  // bytes of the text before the name, and of all of it
    const std::uint8_t *words, *name;

    __device__ Message(const SlotFront& front, unsigned bad) {
        const bool dense = bad >= front.frames;
        const std::int64_t* const row = front.table + static_cast<std::uint64_t>(bad) * outcome_columns;
        const unsigned long long* const found = front.found + 2 * (dense ? bad - front.frames : 0);
        const bool finite = !dense && static_cast<Status>(row[outcome_status]) != Status::non_finite;
        const std::uint64_t* const at = front.facts.texts_at;
        const unsigned last = front.frames + front.dense;
        words = front.facts.texts + at[last];
        name = front.facts.texts + at[bad];
        prefix = finite ? at[last + 1] - at[last] : 0;
        stop = prefix + at[bad + 1] - at[bad];
        for (unsigned i = 0; i < header_size; ++i) head[i] = i < header_begins ? front.header[i] : 0;
        head[0] |= static_cast<std::uint64_t>(finite ? status_failed : status_non_finite) << status_bit;
        head[header_nbytes_at] = 8 * error_words + stop;
        std::uint64_t* const error = head + header_size;
        error[0] = finite ? 0 : dense ? found[0] : static_cast<std::uint64_t>(row[outcome_bad_count]);
        error[1] = finite ? 0 : dense ? ~found[1] : static_cast<std::uint64_t>(row[outcome_bad_first]);
        error[2] = static_cast<std::uint32_t>(front.rank);
    }
    __device__ std::uint8_t byte(std::uint64_t at) const {
        if (at < sizeof head) return static_cast<std::uint8_t>(head[at / 8] >> (at % 8 * 8));
        at -= sizeof head;
        if (at >= stop) return 0;
        return at < prefix ? words[at] : name[at - prefix];
    }
};

__global__ void __launch_bounds__(threads) write(SlotFront front) {
    constexpr unsigned none = ~0u;
    unsigned bad = none;
    for (unsigned i = threadIdx.x; i < front.frames + front.dense && bad == none; i += threads) {
        const bool dense = i >= front.frames;
        const bool good = dense ? front.found[2 * (i - front.frames)] == 0
                                : front.table[static_cast<std::uint64_t>(i) * outcome_columns + outcome_status] == 0;
        if (!good) bad = i;
    }
    bad = block_reduce<threads>(bad, Least{});
    if (bad == none) {
        auto* const words = reinterpret_cast<std::uint64_t*>(front.slot);
        for (std::uint64_t word = threadIdx.x; word < front.dense_at / 8; word += threads) words[word] = good_word(front, word);
        return;
    }
    const Message message(front, bad);
    for (std::uint64_t at = threadIdx.x; at < front.nbytes; at += threads) front.slot[at] = message.byte(at);
}

// A block has the frames of one rank.
__global__ void __launch_bounds__(threads) locate(Slots slots, FrameAt* frames, std::uint32_t tensors, std::uint32_t ranks) {
    const std::uint8_t* const slot = slots.bytes + blockIdx.x * slots.stride;
    const auto* const header = reinterpret_cast<const std::uint64_t*>(slot);
    bool well = true;
    for (unsigned i = 0; i < header_begins; ++i) well &= header[i] == slots.header[i];
    std::uint64_t before = 0;
    for (std::uint32_t first = 0; first < tensors; first += threads) {
        const std::uint32_t i = first + threadIdx.x;
        const bool there = i < tensors;
        const std::uint64_t record = slots.records_at + std::uint64_t{8 * record_words} * i;
        const auto word = [&](std::uint64_t rank, unsigned number) {
            return reinterpret_cast<const std::uint64_t*>(slots.bytes + rank * slots.stride + record)[number];
        };
        FrameAt* const frame = frames + static_cast<std::uint64_t>(i) * ranks + blockIdx.x;
        const std::uint64_t len = there ? word(blockIdx.x, 0) : 0;
        const bool fits = there && well && len <= frame->len;
        const auto scanned = block_scan<threads>(fits ? len : std::uint64_t{0});
        if (there) {
            bool zero = fits;
            for (std::uint64_t rank = 0; zero && rank < ranks; ++rank) zero = word((blockIdx.x + rank) % ranks, 2) != 0;
            *frame = {slot + slots.frames_at + before + scanned.before, zero ? no_frame : fits ? len : 0};
        }
        before += scanned.total;
    }
}

const Kernels kernels{examine_dense, write, locate};

}  // namespace

cudaError_t write_front(const SlotFront& front, const void* values, Dtype dtype, std::uint64_t numel, cudaStream_t stream) {
    if (front.dense > 0) {
        GRADWIRE_TRY(cudaMemsetAsync(front.found, 0, 2 * sizeof(front.found[0]) * front.dense, stream));
        GRADWIRE_TRY(launch(examine_dense, pieces(numel, tile_entries), threads, stream, values, dtype, numel, front.facts,
                            front.dense, front.found));
    }
    return launch(write, 1, threads, stream, front);
}

cudaError_t locate_frames(const Slots& slots, FrameAt* frames, std::uint32_t tensors, std::uint32_t ranks,
                          cudaStream_t stream) {
    return launch(locate, ranks, threads, stream, slots, frames, tensors, ranks);
}

}  // namespace gradwire
