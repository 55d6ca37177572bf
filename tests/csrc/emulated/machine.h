// The machine that kernels run on: a launch's blocks, their warps, and threads that are fibers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "fiber.h"
#include "races.h"

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

constexpr int warpSize = 32;

namespace emulated {

using Where = std::source_location;

struct Block;

enum class State { runnable, at_barrier, at_meeting, ended };

// What a thread brings to a meeting of its warp, and takes from it.
struct Meeting {
    const char* word = nullptr;
    unsigned mask = 0;
    Where where;
    std::uint64_t given = 0;
    std::uint64_t with = 0;
    std::uint64_t taken = 0;
};

struct Thread {
    uint3 index{};
    unsigned lane = 0;
    Block* block = nullptr;
    Thread* warp = nullptr;  // the threads of the warp, by lane
    unsigned warp_threads = 0;
    unsigned met = 0;  // of the warp's first thread: the lanes that wait in a meeting
    State state = State::runnable;
    Context context;
    Stack stack;
    Meeting meeting;
    Where barrier;
};

// The memory of one declaration.
struct Shared {
    std::unique_ptr<char[]> memory;
    std::size_t size = 0;
};

struct Block {
    uint3 index{};
    std::vector<Thread> threads;
    unsigned arrived = 0;
    unsigned ended = 0;
    int votes = 0;   // of the barrier that threads are arriving at
    int result = 0;  // of the last one
    std::map<const void*, Shared> shared;
    std::size_t shared_bytes = 0;
};

struct Launch {
    dim3 grid, block;
    const std::function<void()>* body = nullptr;
    bool together = false;  // all blocks are resident at once
};

// The thread that is running, and the launch that it belongs to.
inline Thread* current = nullptr;
inline const Launch* launch = nullptr;

// Runs all threads of a launch to their ends. The error, if any, is kept until it is taken.
bool run(const Launch& launch);

// Suspends the running thread; it goes on when the scheduler next comes to it, if it then can.
void suspend();

// Says that a waiting loop goes round once more.
void pause();

// Now and then lets others go first: where threads of several blocks meet, any order must do.
void perhaps_pause();

// Ends the launch with an error that names the running thread. Does not return.
[[noreturn]] void fail(const std::string& message);

// Waits until all threads of the block have come to the same place; returns the sum of `vote`.
int barrier(int vote, const Where& where);

// Computes what every lane of the mask takes; runs once, when all of them have come.
using Resolve = void (*)(Thread* warp, unsigned mask);

// Waits until all lanes of the mask have come with the same word.
std::uint64_t meet(const char* word, unsigned mask, std::uint64_t given, std::uint64_t with,
                   Resolve resolve, const Where& where);

// The block's memory for one declaration, filled with a pattern that no kernel can rely on.
void* shared(const void* declaration, std::size_t size);

}  // namespace emulated

// Numbers of the running thread: objects that convert to them.
namespace emulated {

enum class Of { thread, block, block_size, grid_size };

template <Of of, unsigned uint3::*member>
struct Number {
    EMULATED_UNWATCHED operator unsigned() const {
        if constexpr (of == Of::thread) return current->index.*member;
        if constexpr (of == Of::block) return current->block->index.*member;
        const uint3 size = of == Of::block_size ? launch->block : launch->grid;
        return size.*member;
    }
};

template <Of of>
struct Numbers {
    Number<of, &uint3::x> x;
    Number<of, &uint3::y> y;
    Number<of, &uint3::z> z;
};

}  // namespace emulated

inline constexpr emulated::Numbers<emulated::Of::thread> threadIdx{};
inline constexpr emulated::Numbers<emulated::Of::block> blockIdx{};
inline constexpr emulated::Numbers<emulated::Of::block_size> blockDim{};
inline constexpr emulated::Numbers<emulated::Of::grid_size> gridDim{};
