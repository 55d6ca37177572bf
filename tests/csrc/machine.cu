// Entry points for test_machine.py: kernels with a mistake each, and the words of a warp.
#include "device/block.cuh"

using namespace gradwire;

namespace {

__global__ void missed_barrier() {
    if (threadIdx.x != 5) __syncthreads();
}

__global__ void two_barriers() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

__global__ void missed_shuffle(unsigned* out) {
    if (lane() != 3) out[lane()] = __shfl_sync(all_lanes, lane(), 0);
}

__global__ void two_words(unsigned* out) {
    if (lane() < 16)
        out[lane()] = __ballot_sync(all_lanes, 1);
    else
        out[lane()] = __shfl_sync(all_lanes, lane(), 0);
}

// Waits for a block with a higher number, which may not have started.
__global__ void waits_for_the_last(const volatile unsigned* flag, unsigned* done) {
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) *done = 1;
    while (*flag == 0) __nanosleep(10);
}

__global__ void write(unsigned char* at, std::uint64_t count) {
    const std::uint64_t i = std::uint64_t(blockIdx.x) * 64 + threadIdx.x;
    if (i < count) at[i] = 1;
}

__global__ void first_words(unsigned* out) {
    struct Shared {
        unsigned word;
    };
    GRADWIRE_SHARED(Shared, shared);
    if (threadIdx.x != 0) return;
    out[blockIdx.x] = shared.word;
    shared.word = 7;
}

__global__ void words(const unsigned* values, unsigned* out) {
    const unsigned value = values[lane()];
    unsigned* row = out + lane() * 12;
    row[0] = __shfl_sync(all_lanes, value, int(value % 32));
    row[1] = __shfl_up_sync(all_lanes, value, 3);
    row[2] = __shfl_down_sync(all_lanes, value, 3, 8);
    row[3] = __shfl_xor_sync(all_lanes, value, 5);
    row[4] = __ballot_sync(all_lanes, value % 2);
    row[5] = __match_any_sync(all_lanes, value % 5);
    row[6] = __reduce_add_sync(all_lanes, value);
    row[7] = __reduce_max_sync(all_lanes, value);
    row[8] = unsigned(__any_sync(all_lanes, value == values[9])) + 2 * unsigned(__all_sync(all_lanes, value == values[9]));
    const unsigned odd = 0xaaaaaaaau, mine = lane() % 2 ? odd : ~odd;
    row[9] = __reduce_min_sync(mine, value);
    row[10] = unsigned(__syncthreads_count(value % 2));
    row[11] = __brev(value) ^ __umulhi(value, 0x9e3779b9u) ^ unsigned(__clz(int(value >> (lane() + 1) / 2)));
}

}  // namespace

extern "C" int gradwire_test_missed_barrier() { return launch(missed_barrier, 2, 64, nullptr); }
extern "C" int gradwire_test_two_barriers() { return launch(two_barriers, 2, 64, nullptr); }
extern "C" int gradwire_test_missed_shuffle(unsigned* out) { return launch(missed_shuffle, 1, 32, nullptr, out); }
extern "C" int gradwire_test_two_words(unsigned* out) { return launch(two_words, 1, 32, nullptr, out); }
extern "C" int gradwire_test_waits(unsigned* flag, unsigned* done) {
    return launch(waits_for_the_last, 50, 32, nullptr, flag, done);
}
extern "C" int gradwire_test_write(unsigned char* at, std::uint64_t count) {
    return launch(write, pieces(count, 64), 64, nullptr, at, count);
}
extern "C" int gradwire_test_first_words(unsigned* out) { return launch(first_words, 8, 32, nullptr, out); }
extern "C" int gradwire_test_words(const unsigned* values, unsigned* out) {
    return launch(words, 1, 32, nullptr, values, out);
}
