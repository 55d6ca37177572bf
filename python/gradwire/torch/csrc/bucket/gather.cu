// Copies the frames of a bucket, one after another, and finds those that follow one another.
#include "bucket/gather.h"

#include "device/probe.h"
#include "device/segments.cuh"
#include "frame/read.cuh"

namespace gradwire {

namespace {

constexpr unsigned threads = 256, head_threads = 64;
constexpr unsigned tile_bytes = 8 * 1024;

// Copies bytes of a frame, which begins at a word, to where words need not begin; a block together.
//
// What comes out is written in whole words as far as those are within the frame, and read in whole words of
// the frame, never beyond its end.
__device__ void copy_bytes(const std::uint8_t* frame, std::int64_t nbytes, std::uint8_t* out, std::int64_t start,
                           std::int64_t from, std::int64_t to) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(frame);
    // Words of the output from the first one that is whole to the last whose words of the frame are.
    const std::int64_t first = (from + 3) / 4, whole = start + nbytes / 4 * 4 - 4;
    const std::int64_t beyond = to / 4 < whole / 4 ? to / 4 : whole / 4;
    const std::int64_t body = first * 4, tail = beyond > first ? beyond * 4 : body;
    const auto shift = static_cast<unsigned>((body - start) % 4) * 8;
#pragma unroll 4
    for (std::int64_t at = first + threadIdx.x; at < beyond; at += threads) {
        const std::int64_t word = (at * 4 - start) / 4;
        const std::uint32_t low = words[word], high = shift == 0 ? 0 : words[word + 1];
        reinterpret_cast<std::uint32_t*>(out)[at] = __funnelshift_r(low, high, shift);
    }
    const std::int64_t head = body < to ? body : to;
    for (std::int64_t at = from + threadIdx.x; at < head; at += threads) out[at] = frame[at - start];
    for (std::int64_t at = tail + threadIdx.x; at < to; at += threads) out[at] = frame[at - start];
}

// A block copies a tile of what comes out.
__global__ void __launch_bounds__(threads) copy(const Piece* pieces, unsigned count, const std::int64_t* table,
                                                std::uint8_t* out) {
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * tile_bytes;
    // The last frame that begins at or before the tile. Frames of no bytes begin where the next one does.
    const auto row_of = [&](unsigned piece) { return table + static_cast<std::uint64_t>(piece) * outcome_columns; };
    const auto begins = [&](unsigned piece) { return row_of(piece)[outcome_start] <= begin; };
    for (unsigned piece = partition_point(1u, count, begins) - 1; piece < count; ++piece) {
        const std::int64_t* const row = row_of(piece);
        const std::int64_t start = row[outcome_start], stop = start + row[outcome_nbytes];
        if (start >= begin + tile_bytes) break;
        const std::int64_t from = start > begin ? start : begin;
        const std::int64_t to = stop < begin + tile_bytes ? stop : begin + tile_bytes;
        copy_bytes(pieces[piece].frame, stop - start, out, start, from, to);
    }
}

// One thread goes from header to header of a message.
__global__ void find_heads(const std::uint8_t* data, const std::int64_t* bounds, std::uint64_t messages,
                           std::uint64_t most, std::int64_t* table) {
    const std::uint64_t message = static_cast<std::uint64_t>(blockIdx.x) * head_threads + threadIdx.x;
    if (message >= messages) return;
    std::int64_t at = bounds[2 * message];
    const std::int64_t stop = bounds[2 * message + 1];
    std::int64_t* row = table + message * most * head_columns;
    for (std::uint64_t i = 0; i < most; ++i, row += head_columns) {
        const auto left = static_cast<std::uint64_t>(stop - at);
        const Bytes bytes{data + at, left};
        std::uint64_t nbytes = 0;
        if (left >= header_len) {
            const std::uint64_t index_len = reading::number(bytes, 32), value_len = reading::number(bytes, 40);
            const std::uint64_t rest = left - header_len;
            if (index_len <= rest && value_len <= rest - index_len) nbytes = header_len + index_len + value_len;
        }
        row[head_start] = at;
        row[head_nbytes] = static_cast<std::int64_t>(nbytes);
        row[head_numel] = nbytes > 0 ? static_cast<std::int64_t>(reading::number(bytes, 16)) : 0;
        row[head_count] = nbytes > 0 ? static_cast<std::int64_t>(reading::number(bytes, 24)) : 0;
        at += static_cast<std::int64_t>(nbytes);
    }
}

const Kernels kernels{copy, find_heads};

}  // namespace

cudaError_t launch_gather(const Piece* all, unsigned count, std::uint64_t most, std::uint8_t* out,
                          const std::int64_t* table, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return launch(copy, pieces(most, tile_bytes), threads, stream, all, count, table, out);
}

cudaError_t launch_heads(const std::uint8_t* data, const std::int64_t* bounds, std::uint64_t messages, std::uint64_t most,
                         std::int64_t* table, cudaStream_t stream) {
    return launch(find_heads, pieces(messages, head_threads), head_threads, stream, data, bounds, messages, most, table);
}

}  // namespace gradwire
