// One thread goes from header to header of a message.
#include "bucket/heads.h"

#include "device/probe.h"
#include "frame/read.cuh"

namespace gradwire {

namespace {

constexpr unsigned threads = 64;

__global__ void find_heads(const std::uint8_t* data, const std::int64_t* bounds, std::uint64_t messages,
                           std::uint64_t most, std::int64_t* table) {
    const std::uint64_t message = static_cast<std::uint64_t>(blockIdx.x) * threads + threadIdx.x;
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

const Kernels kernels{find_heads};

}  // namespace

cudaError_t launch_heads(const std::uint8_t* data, const std::int64_t* bounds, std::uint64_t messages, std::uint64_t most,
                         std::int64_t* table, cudaStream_t stream) {
    return launch(find_heads, {pieces(messages, threads)}, threads, stream, data, bounds, messages, most, table);
}

}  // namespace gradwire
