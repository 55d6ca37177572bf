// Entry points for test_scans.py: the scans and reductions of device/.
#include "device/block.cuh"
#include "device/look_back.cuh"
#include "device/segments.cuh"

using namespace gradwire;

namespace {

constexpr unsigned threads = 128;

__global__ void reduce(const std::uint32_t* values, std::uint64_t count, std::uint32_t* out) {
    const std::uint64_t at = std::uint64_t(blockIdx.x) * threads + threadIdx.x;
    const std::uint32_t value = at < count ? values[at] : 0;
    const std::uint32_t sum = block_reduce<threads>(value, Sum{});
    const std::uint32_t most = block_reduce<threads>(value, Greatest{});
    const std::uint32_t least = block_reduce<threads>(at < count ? value : ~0u, Least{});
    if (threadIdx.x == threads - 1) {
        out[3 * blockIdx.x] = sum;
        out[3 * blockIdx.x + 1] = most;
        out[3 * blockIdx.x + 2] = least;
    }
}

// The tree's order shows in the bits of a floating-point sum.
__global__ void reduce_floats(const float* values, float* out) {
    out[threadIdx.x] = block_reduce<threads>(values[threadIdx.x], Sum{});
}

// Keeps what is odd, in order, each chain of tiles (a segment of the input) into a place of its own.
__global__ void compact(const std::uint32_t* values, const std::uint32_t* first_tile, const std::uint64_t* starts,
                        std::uint64_t segments, unsigned* ticket, unsigned long long* tiles,
                        std::uint32_t* out, std::uint64_t* counts) {
    const unsigned tile = take_ticket(ticket);
    const unsigned segment = segment_of(first_tile, unsigned(segments), tile);
    const std::uint64_t at = starts[segment] + std::uint64_t(tile - first_tile[segment]) * threads + threadIdx.x;
    const bool keep = at < starts[segment + 1] && values[at] % 2 == 1;
    const auto [before, total] = block_scan<threads, unsigned>(keep);
    const std::uint64_t base = sum_before(tiles, first_tile[segment], tile, total);
    if (keep) out[starts[segment] + base + before] = values[at];
    if (tile + 1 == first_tile[segment + 1] && threadIdx.x == 0) counts[segment] = base + total;
}

}  // namespace

extern "C" int gradwire_test_reduce(const std::uint32_t* values, std::uint64_t count, std::uint32_t* out) {
    return launch(reduce, pieces(count, threads), threads, nullptr, values, count, out);
}

extern "C" int gradwire_test_reduce_floats(const float* values, float* out) {
    return launch(reduce_floats, 1, threads, nullptr, values, out);
}

extern "C" int gradwire_test_compact(const std::uint32_t* values, const std::uint32_t* first_tile,
                                     const std::uint64_t* starts, std::uint64_t segments, std::uint64_t tiles,
                                     unsigned* ticket, unsigned long long* words, std::uint32_t* out,
                                     std::uint64_t* counts) {
    return launch(compact, tiles, threads, nullptr, values, first_tile, starts, segments, ticket, words, out,
                  counts);
}
