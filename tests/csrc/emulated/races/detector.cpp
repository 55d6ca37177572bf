// Finds accesses of two threads to the same bytes that nothing orders, one of them a write.
//
// Each thread has a clock: what it knows that others have done. Barriers and __syncwarp join those of
// who meets. A fence takes a copy of its thread's, which the atomic and volatile stores that follow
// leave at their words; a load notes what it finds there, and a later fence takes that over. This is
// the order of the PTX memory model, and no more: the other _sync words give none. The shadow of every
// byte says who used it last; who comes next must know of that.
#include <algorithm>
#include <array>

#include "../machine.h"
#include "callbacks.h"
#include "shadow.h"

namespace emulated::races {

namespace {

struct Watched {
    SharedClock clock, observed, released;
    Moment now;
    const Frame* frame = nullptr;
};

struct BlockWatched {
    std::vector<Watched> threads;
};

// An access that a thread has just made; again at the same moment it says nothing new.
struct Recent {
    std::uintptr_t address = 0;
    std::uint32_t thread = 0, size = 0;
    Moment moment;
    std::uint64_t launch = 0;
    bool writes = false;
};

struct Running {
    const Thread* thread = nullptr;
    Watched* watched = nullptr;
    std::uint32_t number = 0;  // of the thread, over the launch
};

// The kernels of a process run one after another, but its other threads run code of the host.
thread_local Running running __attribute__((tls_model("initial-exec")));

std::uint64_t launches;
std::uint32_t block_warps;
std::vector<std::unique_ptr<BlockWatched>> blocks;
Shadow shadow;
std::unordered_map<std::uintptr_t, SharedClock> flags;  // what a load of the word may come to know
std::array<Recent, 1 << 14> recent;

std::uint32_t block_threads() { return block_warps * warpSize; }

std::uint32_t number_of(const uint3& at, const dim3& size) { return (at.z * size.y + at.y) * size.x + at.x; }

std::string triple(std::uint32_t number, const dim3& size) {
    return std::to_string(number % size.x) + "," + std::to_string(number / size.x % size.y) + "," +
           std::to_string(number / size.x / size.y);
}

bool knows(const SharedClock& clock, const Access& access, std::uint32_t lanes) {
    if (!clock) return false;
    if (clock->knows_block(access.warp / block_warps, access.moment)) return true;
    for (; lanes; lanes &= lanes - 1)
        if (!clock->knows(access.warp * warpSize + __builtin_ctz(lanes), access.moment)) return false;
    return true;
}

const char* remedy(const Access& former, const Access& now) {
    if (former.strong && now.strong) return "atomics of one width";
    if (former.warp == now.warp) return "a __syncwarp of both lanes between the two";
    if (former.warp / block_warps == now.warp / block_warps) return "a __syncthreads between the two";
    // Any thread of the block may have loaded the flag: a barrier passes it on.
    for (const Watched& thread : blocks[now.warp / block_warps]->threads)
        if (knows(thread.observed, former, former.lanes))
            return "a __threadfence after the load of the flag that says that the first is done";
    return "a __threadfence after the first, then an atomic or volatile store of a flag, its load and a "
           "__threadfence before the second; or a kernel for each; or atomics for both";
}

[[noreturn]] void tell(std::uintptr_t cell, const Access& former, std::uint32_t lanes, const Access& now) {
    const std::uint32_t number = former.warp * warpSize + __builtin_ctz(lanes);
    const char* what = former.strong ? (former.writes ? "changed atomically" : "read as volatile") : former.writes ? "written" : "read";
    const char* does = now.strong ? (now.writes ? "changes atomically" : "reads as volatile") : now.writes ? "writes" : "reads";
    const char* memory = "global";
    for (const auto& [declaration, part] : running.thread->block->shared)
        if (cell + cell_bytes > reinterpret_cast<std::uintptr_t>(part.memory.get()) &&
            cell < reinterpret_cast<std::uintptr_t>(part.memory.get()) + part.size)
            memory = "shared";
    fail(std::string("a race in ") + memory + " memory: it " + does + " what thread " +
         triple(number % block_threads(), launch->block) + " of block " + triple(number / block_threads(), launch->grid) +
         " has " + what + ", and nothing orders the two" + "\n  first:  " + lines(former.place) + "\n  second: " +
         lines(now.place) + "\n  needed: " + remedy(former, now));
}

// Compares an access with those before it, and takes it down.
void note(std::uintptr_t address, const Access& now) {
    Cell& cell = shadow.cell(address);
    auto& accesses = cell.accesses;
    if (!now.writes && now.is_as(cell.left_out)) return;
    if (!now.writes && !accesses.empty() && now.is_as(accesses.back())) {
        accesses.back().lanes |= now.lanes;
        return;
    }
    const SharedClock& clock = running.watched->clock;
    Access* same = nullptr;
    unsigned readers = 0;
    std::size_t kept = 0;
    for (Access& former : accesses) {
        const bool own_warp = former.warp == now.warp;
        const bool own_block = former.warp / block_warps == now.warp / block_warps;
        const std::uint32_t others = own_warp ? former.lanes & ~now.lanes : former.lanes;
        bool before = true;
        if (others && former.bytes & now.bytes) {
            before = own_block && former.moment.phase < now.moment.phase;
            // Reads of other blocks are kept whether they are known or not.
            if (!before && (own_block || now.writes || former.writes)) before = knows(clock, former, others);
            if (!before && now.conflicts(former)) tell(address, former, others, now);
        }
        if (former.strong && now.writes && !now.strong) flags.erase(address), flags.erase(address + 4);
        if (before && now.covers(former)) continue;
        if (&accesses[kept] != &former) accesses[kept] = former;
        if (now.is_as(former)) same = &accesses[kept];
        readers += own_block && !own_warp && former.moment.phase == now.moment.phase && former.covers(now);
        ++kept;
    }
    accesses.resize(kept);
    if (same) {
        same->lanes |= now.lanes;
    } else if (!now.writes && readers >= 2) {
        // A later write of whomever conflicts with one of two warps, if with any.
        cell.left_out = now;
    } else {
        accesses.push_back(now);
        cell.left_out = {};
    }
}

void note(const void* at, unsigned size, bool writes, bool strong, const void* code) {
    const Running& self = running;
    const Watched& watched = *self.watched;
    auto address = reinterpret_cast<std::uintptr_t>(at);
    Access access{self.number / warpSize, 1u << self.number % warpSize, watched.now, 0, writes, strong, watched.clock.get(), {code, watched.frame}};
    while (size > 0) {
        const unsigned first = address % cell_bytes;
        const unsigned count = std::min(size, cell_bytes - first);
        access.bytes = static_cast<std::uint8_t>(((1u << count) - 1) << first);
        note(address - first, access);
        address += count;
        size -= count;
    }
}

bool own_stack(const void* at) {
    const Stack& stack = running.thread->stack;
    return at >= stack.bottom && at < stack.bottom + stack.size;
}

}  // namespace

void begin(const Launch& launch) {
    ++launches;
    const dim3& shape = launch.block;
    block_warps = (shape.x * shape.y * shape.z + warpSize - 1) / warpSize;
    blocks.clear();
    blocks.resize(std::size_t(launch.grid.x) * launch.grid.y * launch.grid.z);
    shadow.forget_all();
    flags.clear();
}

void runs(const Thread* thread) {
    if (!thread) {
        running = {};
        return;
    }
    const std::uint32_t block = number_of(thread->block->index, launch->grid);
    const std::uint32_t number = number_of(thread->index, launch->block);
    auto& watched = blocks[block];
    if (!watched) {
        watched = std::make_unique<BlockWatched>();
        watched->threads.resize(block_threads());
        const auto nothing = std::make_shared<Clock>(block_threads());
        for (Watched& each : watched->threads) each.clock = nothing;
    }
    running = {thread, &watched->threads[number], block * block_threads() + number};
}

void barrier(const Block& block) {
    const std::uint32_t number = number_of(block.index, launch->grid);
    auto& threads = blocks[number]->threads;
    auto clock = std::make_shared<Clock>(*threads[0].clock);
    const Clock* last = threads[0].clock.get();
    for (const Watched& each : threads)
        if (each.clock.get() != last) clock->join(*(last = each.clock.get()));
    const Moment now{threads[0].now.phase + 1, 0};
    clock->learn_block(number, now);
    const SharedClock shared = std::move(clock);
    for (Watched& each : threads) {
        each.clock = shared;
        each.now = now;
    }
}

void syncwarp(const Thread* warp, unsigned mask) {
    const std::uint32_t block = number_of(warp->block->index, launch->grid);
    const std::uint32_t first = number_of(warp->index, launch->block);
    auto& threads = blocks[block]->threads;
    const Watched& one = threads[first + __builtin_ctz(mask)];
    auto clock = std::make_shared<Clock>(*one.clock);
    const Clock* last = one.clock.get();
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const unsigned number = first + __builtin_ctz(rest);
        Watched& each = threads[number];
        if (each.clock.get() != last) clock->join(*(last = each.clock.get()));
        ++each.now.step;
        clock->learn(block * block_threads() + number, each.now);
    }
    const SharedClock shared = std::move(clock);
    for (unsigned rest = mask; rest; rest &= rest - 1) threads[first + __builtin_ctz(rest)].clock = shared;
}

void fence() {
    Watched& self = *running.watched;
    self.clock = joined(self.clock, self.observed);
    self.observed = nullptr;
    ++self.now.step;
    auto released = std::make_shared<Clock>(*self.clock);
    released->learn(running.number, self.now);
    self.released = std::move(released);
}

// A store takes the place of what the word carried, a change adds to it.
void strong(const void* at, unsigned size, bool reads, bool writes, const void* code) {
    if (!running.thread || own_stack(at)) return;
    note(at, size, writes, true, code);
    Watched& self = *running.watched;
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    const auto flag = flags.find(address);
    const SharedClock carried = flag == flags.end() ? nullptr : flag->second;
    if (reads) self.observed = joined(self.observed, carried);
    if (!writes) return;
    if (SharedClock next = reads ? joined(carried, self.released) : self.released)
        flags[address] = std::move(next);
    else if (carried)
        flags.erase(flag);
}

void atomic(const void* at, unsigned size, const void* caller) { strong(at, size, true, true, caller); }

void weak(const void* at, unsigned size, bool writes, const void* code) {
    if (!running.thread || own_stack(at)) return;
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    const Moment now = running.watched->now;
    Recent& known = recent[(address / 4 * 31 + running.number) % recent.size()];
    if (known.address == address && known.size == size && known.thread == running.number && known.moment == now &&
        known.launch == launches && (known.writes || !writes))
        return;
    known = {address, running.number, size, now, launches, writes};
    note(at, size, writes, false, code);
}

void aligned(const void* at, unsigned size, const void* code) {
    // Two words that the compiler moves at once are told of as sixteen bytes.
    if (running.thread && reinterpret_cast<std::uintptr_t>(at) % std::min(size, 8u) != 0)
        fail("uses " + std::to_string(size) + " bytes at an address that is not a multiple of it, at " +
             lines({code, running.watched->frame}));
}

void enter(const void* from) {
    if (running.thread) running.watched->frame = frame_of(running.watched->frame, from);
}

void leave() {
    if (running.thread && running.watched->frame) running.watched->frame = running.watched->frame->up;
}

void end(const Block& block) {
    for (const auto& [declaration, part] : block.shared)
        shadow.forget(reinterpret_cast<std::uintptr_t>(part.memory.get()), part.size);
    blocks[number_of(block.index, launch->grid)].reset();
}

}  // namespace emulated::races
