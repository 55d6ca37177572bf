// What the machine tells the race detector (races/): who waits for whom, and what is atomic. Without
// EMULATED_RACES, in the ordinary build, nothing.
#pragma once

#include <cstddef>

// How the functions of this folder that kernels call are kept apart from them in a build that watches:
// what they do themselves is not a kernel's access, and `EMULATED_CALLER` is the kernel's place.
#ifdef EMULATED_RACES
#define EMULATED_UNWATCHED __attribute__((noinline, no_sanitize("thread")))
#define EMULATED_CALLER __builtin_return_address(0)
#else
#define EMULATED_UNWATCHED
#define EMULATED_CALLER nullptr
#endif

namespace emulated {
struct Block;
struct Launch;
struct Thread;
}  // namespace emulated

namespace emulated::races {

#ifdef EMULATED_RACES

// A launch begins: everything before it is ordered before everything in it.
void begin(const Launch& launch);

// The thread runs from now on; none does where it is null.
void runs(const Thread* thread);

// All threads of the block have come to a barrier, or the lanes of the mask to a __syncwarp.
void barrier(const Block& block);
void syncwarp(const Thread* warp, unsigned mask);

// The running thread is at a __threadfence, or about to change a word atomically.
void fence();
void atomic(const void* at, unsigned size, const void* caller);

// All threads of the block have ended: the shared memory of another may come to lie where its was.
void end(const Block& block);

#else

inline void begin(const Launch&) {}
inline void runs(const Thread*) {}
inline void barrier(const Block&) {}
inline void syncwarp(const Thread*, unsigned) {}
inline void fence() {}
inline void atomic(const void*, unsigned, const void*) {}
inline void end(const Block&) {}

#endif

}  // namespace emulated::races
