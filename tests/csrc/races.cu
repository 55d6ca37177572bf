// Entry points for test_races.py: kernels with one mistake each, and their twins without it.
//
// `Right` is the twin: what stands behind it is all that the other lacks.
#include "device/look_back.cuh"

using namespace gradwire;

namespace {

struct Words {
    unsigned word[64];
};

// Thread 0 of another warp's word, through shared memory.
template <bool Right>
__global__ void barrier(unsigned* out) {
    GRADWIRE_SHARED(Words, shared);
    shared.word[threadIdx.x] = threadIdx.x;
    if (Right) __syncthreads();
    out[threadIdx.x] = shared.word[63 - threadIdx.x];
}

// A barrier between the write and the read, and none before the next write.
template <bool Right>
__global__ void barrier_of_a_loop(unsigned* out) {
    GRADWIRE_SHARED(Words, shared);
    for (unsigned turn = 0; turn < 3; ++turn) {
        if (threadIdx.x == 0) shared.word[0] = turn;
        __syncthreads();
        out[threadIdx.x] = shared.word[0];
        if (Right) __syncthreads();
    }
}

// Lanes of a warp exchange words through shared memory; a shuffle between does not order them.
template <bool Right>
__global__ void lanes(unsigned* out) {
    GRADWIRE_SHARED(Words, shared);
    shared.word[threadIdx.x] = lane();
    if (Right)
        __syncwarp();
    else
        __shfl_sync(all_lanes, 0, 0);
    out[threadIdx.x] = shared.word[threadIdx.x ^ 1];
}

// The halves of a warp meet apart: those of the other half are not met.
template <bool Right>
__global__ void lanes_of_a_mask(unsigned* out) {
    GRADWIRE_SHARED(Words, shared);
    const unsigned half = lane() < 16 ? 0xffffu : 0xffff0000u;
    shared.word[threadIdx.x] = lane();
    __syncwarp(half);
    out[threadIdx.x] = shared.word[threadIdx.x ^ (Right ? 1 : 16)];
}

// Block 0 leaves a word to the others, and says so with a flag.
template <bool Stored, bool Loaded>
__global__ void flag(unsigned* words, unsigned* out) {
    volatile unsigned* const said = words + 8;
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) {
            words[0] = 7;
            if (Stored) __threadfence();
            *said = 1;
        } else {
            while (*said == 0) __nanosleep(10);
            if (Loaded) __threadfence();
        }
    }
    __syncthreads();
    if (blockIdx.x != 0) out[blockIdx.x * 64 + threadIdx.x] = words[0];
}

// The last block adds up what all of them have left; it knows itself by an atomic count.
template <bool Stored, bool Loaded>
__global__ void last(unsigned* words, unsigned* out) {
    struct Shared {
        bool last;
    };
    GRADWIRE_SHARED(Shared, shared);
    out[blockIdx.x * 64 + threadIdx.x] = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        if (Stored) __threadfence();
        shared.last = atomicAdd(words, 1u) + 1 == gridDim.x;
        if (Loaded) __threadfence();
    }
    __syncthreads();
    if (!shared.last) return;
    unsigned sum = 0;
    for (unsigned block = 0; block < gridDim.x; ++block) sum += out[block * 64 + threadIdx.x];
    words[8 + threadIdx.x] = sum;
}

// A fence before the data is none: what comes after it is not released.
template <bool Right>
__global__ void early_fence(unsigned* words, unsigned* out) {
    if (blockIdx.x == 0) {
        if (!Right) __threadfence();
        if (threadIdx.x == 0) words[0] = 7;
        if (Right) __threadfence();
        if (threadIdx.x == 0) atomicExch(words + 8, 1u);
    } else {
        while (atomicAdd(words + 8, 0u) == 0) __nanosleep(10);
        __threadfence();
        out[blockIdx.x * 64 + threadIdx.x] = words[0];
    }
}

template <bool Right>
__global__ void increment(unsigned* words) {
    if (threadIdx.x != 0) return;
    if (Right)
        atomicAdd(words, 1u);
    else
        ++*words;
}

// One reads plainly what others change atomically.
template <bool Right>
__global__ void plain_read(unsigned* words, unsigned* out) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0)
        out[0] = Right ? atomicAdd(words, 0u) : *words;
    else
        atomicAdd(words, 1u);
}

// Streams of five bytes a block, written as words where they are whole; or with the last word too.
template <bool Right>
__global__ void bytes(unsigned char* out) {
    if (threadIdx.x != 0) return;
    unsigned char* const own = out + blockIdx.x * 6;
    auto* const words = reinterpret_cast<unsigned short*>(own);
    for (unsigned i = 0; i < 2; ++i) words[i] = 1;
    if (Right)
        own[4] = own[5] = 1;
    else
        words[2] = words[3] = 1;
}

// All blocks write a scratch area, and read what others have written, in one kernel.
template <bool Right>
__global__ void phases(unsigned* words, unsigned* scratch, unsigned turn) {
    const unsigned i = blockIdx.x * 64 + threadIdx.x;
    if (!Right || turn == 0) scratch[i] = i;
    __syncthreads();
    if (!Right || turn == 1) words[i] = scratch[gridDim.x * 64 - 1 - i];
}

template <bool Right>
__global__ void same_value(unsigned* words) {
    if (Right)
        *static_cast<volatile unsigned*>(words) = 1;
    else
        *words = 1;
}

// A sum over blocks' tiles publishes its word alone: what else a block has written comes with no fence.
template <bool Right>
__global__ void beside_look_back(unsigned* ticket, unsigned long long* tiles, unsigned* out) {
    const unsigned tile = take_ticket(ticket);
    out[tile * 64 + threadIdx.x] = tile;
    const auto before = sum_before(tiles, 0, tile, 1);
    if (!Right && tile > 0) out[512 + tile * 64 + threadIdx.x] = out[(before - 1) * 64];
}

__global__ void misaligned(unsigned char* bytes) { *reinterpret_cast<unsigned*>(bytes + 2 * threadIdx.x) = 0; }

__global__ void hoard(unsigned* out) {
    struct Large {
        unsigned word[8192];
    };
    struct Larger {
        unsigned word[4097];
    };
    GRADWIRE_SHARED(Large, large);
    GRADWIRE_SHARED(Larger, larger);
    large.word[threadIdx.x] = larger.word[threadIdx.x] = 1;
    out[threadIdx.x] = large.word[threadIdx.x];
}

}  // namespace

// Several blocks are all resident: some wait for others.
template <class... Arguments>
int start(void (*kernel)(Arguments...), unsigned blocks, Arguments... arguments) {
    return launch<Blocks::together>(kernel, blocks, 64, nullptr, arguments...);
}

#define TWINS(name, blocks, parameters, ...)                                                           \
    extern "C" int gradwire_test_race_##name parameters {                                              \
        return right ? start(name<true>, blocks, __VA_ARGS__) : start(name<false>, blocks, __VA_ARGS__); \
    }
#define FENCED(name)                                                                                                  \
    extern "C" int gradwire_test_race_##name(std::uint64_t stored, std::uint64_t loaded, unsigned* words, unsigned* out) { \
        if (!stored) return start(name<false, true>, 4, words, out);                                                  \
        return loaded ? start(name<true, true>, 4, words, out) : start(name<true, false>, 4, words, out);             \
    }

TWINS(barrier, 1, (std::uint64_t right, unsigned*, unsigned* out), out)
TWINS(barrier_of_a_loop, 1, (std::uint64_t right, unsigned*, unsigned* out), out)
TWINS(lanes, 1, (std::uint64_t right, unsigned*, unsigned* out), out)
TWINS(lanes_of_a_mask, 1, (std::uint64_t right, unsigned*, unsigned* out), out)
TWINS(early_fence, 4, (std::uint64_t right, unsigned* words, unsigned* out), words, out)
TWINS(increment, 4, (std::uint64_t right, unsigned* words, unsigned*), words)
TWINS(plain_read, 4, (std::uint64_t right, unsigned* words, unsigned* out), words, out)
TWINS(bytes, 4, (std::uint64_t right, unsigned char* words, unsigned*), words)
TWINS(same_value, 2, (std::uint64_t right, unsigned* words, unsigned*), words)
FENCED(flag)
FENCED(last)

extern "C" int gradwire_test_race_phases(std::uint64_t right, unsigned* words, unsigned* out) {
    if (!right) return start(phases<false>, 4, words, out, 0u);
    if (const int error = start(phases<true>, 4, words, out, 0u)) return error;
    return start(phases<true>, 4, words, out, 1u);
}
extern "C" int gradwire_test_race_beside_look_back(std::uint64_t right, unsigned* words, unsigned* out) {
    auto* const tiles = reinterpret_cast<unsigned long long*>(words + 8);
    return right ? start(beside_look_back<true>, 8, words, tiles, out)
                 : start(beside_look_back<false>, 8, words, tiles, out);
}
extern "C" int gradwire_test_misaligned(unsigned char* bytes) { return launch(misaligned, 1, 32, nullptr, bytes); }
extern "C" int gradwire_test_hoard(unsigned* out) { return launch(hoard, 1, 32, nullptr, out); }
