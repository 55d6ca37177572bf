// The scheduler. Blocks start in a random order and several are resident; each turn goes to one of
// them, whose warps and lanes are resumed in a random order until they wait for each other.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <utility>

#include "control.h"

namespace emulated {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(EMULATED_RACES)
constexpr std::size_t stack_bytes = 256 << 10;
#else
constexpr std::size_t stack_bytes = 64 << 10;
#endif

// Rounds of waiting loops, with no thread coming to its end in between, that count as stuck.
constexpr int patience = 2'000'000;

Context scheduler;
std::minstd_rand random_numbers;
Control settings;
std::string error;
bool failed;
int rounds;
std::vector<Stack> free_stacks;

Stack take_stack() {
    if (free_stacks.empty()) {
        // The page below a stack stays out of reach: what overflows does not overwrite another.
        constexpr std::size_t page = 4096;
        void* memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) std::abort();
        mprotect(memory, page, PROT_NONE);
        return {static_cast<char*>(memory) + page, stack_bytes};
    }
    Stack stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

std::string name(const Thread& thread) {
    auto triple = [](const uint3& at) {
        return std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z);
    };
    return "thread " + triple(thread.index) + " of block " + triple(thread.block->index);
}

std::string place(const Where& where) {
    const char* file = std::strrchr(where.file_name(), '/');
    return std::string(file ? file + 1 : where.file_name()) + ":" + std::to_string(where.line());
}

bool same(const Where& a, const Where& b) {
    return a.line() == b.line() && (a.file_name() == b.file_name() || place(a) == place(b));
}

bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

std::string doing(const Thread& thread) {
    switch (thread.state) {
        case State::at_barrier:
            return "waits in __syncthreads at " + place(thread.barrier);
        case State::at_meeting: {
            char mask[16];
            std::snprintf(mask, sizeof mask, "%08x", thread.meeting.mask);
            return "waits in " + std::string(thread.meeting.word) + " of lanes " + mask + " at " +
                   place(thread.meeting.where);
        }
        case State::ended:
            return "has ended";
        default:
            return "can run";
    }
}

// Says who waits for whom, in a block none of whose threads can go on.
std::string describe(const Block& block) {
    std::map<std::string, std::pair<std::string, int>> groups;
    for (const Thread& thread : block.threads) {
        auto& [first, count] = groups[doing(thread)];
        if (count++ == 0) first = name(thread);
    }
    std::string text = "threads wait for others that do not come:";
    for (const auto& [what, who] : groups)
        text += "\n  " + who.first +
                (who.second > 1 ? " and " + std::to_string(who.second - 1) + " more" : "") + ": " +
                what;
    return text;
}

void leave() { change(current->context, scheduler, scheduler_stack()); }

#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize("address")))
#endif
void body() {
    started();
    (*launch->body)();
    rounds = 0;
    current->state = State::ended;
    ++current->block->ended;
    leave();
    std::abort();
}

std::unique_ptr<Block> make_block(uint3 index) {
    auto block = std::make_unique<Block>();
    block->index = index;
    const dim3& shape = launch->block;
    const unsigned count = shape.x * shape.y * shape.z;
    block->threads.resize(count);
    for (unsigned i = 0; i < count; ++i) {
        Thread& thread = block->threads[i];
        thread.index = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
        thread.lane = i % warpSize;
        thread.block = block.get();
        thread.warp = &block->threads[i - thread.lane];
        thread.warp_threads = std::min<unsigned>(warpSize, count - (i - thread.lane));
        thread.stack = take_stack();
        if (failed) forget(thread.stack);
        thread.context = prepare(thread.stack, body);
    }
    return block;
}

void release(Block& block) {
    races::end(block);
    for (Thread& thread : block.threads) free_stacks.push_back(thread.stack);
}

// Resumes each thread that can run, once. Returns whether there was one.
bool turn(Block& block) {
    const unsigned count = block.threads.size();
    const unsigned warps = (count + warpSize - 1) / warpSize;
    const unsigned first_warp = random_numbers() % warps;
    const unsigned first_lane = random_numbers() % warpSize;
    const bool backwards = random_numbers() & 64;
    bool any = false;
    for (unsigned w = 0; w < warps; ++w)
        for (unsigned l = 0; l < unsigned(warpSize); ++l) {
            const unsigned lane = (first_lane + (backwards ? warpSize - l : l)) % warpSize;
            const unsigned i = (first_warp + w) % warps * warpSize + lane;
            if (i >= count || block.threads[i].state != State::runnable) continue;
            any = true;
            current = &block.threads[i];
            races::runs(current);
            change(scheduler, current->context, current->stack);
            races::runs(nullptr);
            if (!error.empty()) return true;
        }
    return any;
}

std::deque<uint3> shuffled_blocks(const dim3& grid) {
    std::deque<uint3> order;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) order.push_back({x, y, z});
    std::shuffle(order.begin(), order.end(), random_numbers);
    return order;
}

}  // namespace

bool run(const Launch& asked) {
    // Threads of the program may launch at the same time: the machine takes one kernel after another.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    if (!error.empty()) return false;
    launch = &asked;
    random_numbers.seed(settings.seed++);
    races::begin(asked);
    auto waiting = shuffled_blocks(asked.grid);
    std::vector<std::unique_ptr<Block>> resident;
    rounds = 0;
    ++settings.launches;
    while (error.empty() && !(waiting.empty() && resident.empty())) {
        while (!waiting.empty() && (asked.together || resident.size() < settings.resident)) {
            resident.push_back(make_block(waiting.front()));
            waiting.pop_front();
        }
        const std::size_t chosen = random_numbers() % resident.size();
        Block& block = *resident[chosen];
        if (!turn(block)) error = describe(block);
        if (error.empty() && block.ended == block.threads.size()) {
            release(block);
            resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(chosen));
        }
    }
    failed = failed || !error.empty();
    for (auto& block : resident) release(*block);
    current = nullptr;
    launch = nullptr;
    return error.empty();
}

void suspend() { leave(); }

void pause() {
    if (++rounds > patience) fail("waits for other blocks, and none of them moves");
    leave();
}

void perhaps_pause() {
    if (random_numbers() % 16 == 0) leave();
}

void fail(const std::string& message) {
    error = name(*current) + ": " + message;
    leave();
    std::abort();
}

int barrier(int vote, const Where& where) {
    Block& block = *current->block;
    const Thread& other = block.threads[current == block.threads.data() ? 1 % block.threads.size() : 0];
    if (other.state == State::at_barrier && !same(other.barrier, where))
        fail("comes to __syncthreads at " + place(where) + ", while " + name(other) +
             " waits in the one at " + place(other.barrier));
    current->barrier = where;
    if (block.arrived == 0) block.votes = 0;
    block.votes += vote;
    if (++block.arrived == block.threads.size()) {
        block.arrived = 0;
        block.result = block.votes;
        races::barrier(block);
        for (Thread& thread : block.threads) thread.state = State::runnable;
        return block.result;
    }
    current->state = State::at_barrier;
    suspend();
    return block.result;
}

std::uint64_t meet(const char* word, unsigned mask, std::uint64_t given, std::uint64_t with,
                   Resolve resolve, const Where& where) {
    Thread& self = *current;
    if (!(mask >> self.lane & 1)) fail("is not one of the lanes that it names in " + std::string(word));
    if (self.warp_threads < 32 && mask >> self.warp_threads != 0)
        fail("names lanes in " + std::string(word) + " that its warp does not have");
    self.meeting = {word, mask, where, given, with, 0};
    self.state = State::at_meeting;
    unsigned& met = self.warp->met;
    const unsigned others = met & mask;
    if (others != 0) {
        const Thread& other = self.warp[__builtin_ctz(others)];
        if (other.meeting.mask == mask && !same(other.meeting.word, word))
            fail("comes to " + std::string(word) + " at " + place(where) + ", while " + name(other) + " " +
                 doing(other));
    }
    met |= 1u << self.lane;
    bool all = (met & mask) == mask;
    for (unsigned lane = 0; all && lane < self.warp_threads; ++lane)
        if (mask >> lane & 1) all = self.warp[lane].meeting.mask == mask && same(self.warp[lane].meeting.word, word);
    if (all) {
        resolve(self.warp, mask);
        if (same(word, "__syncwarp")) races::syncwarp(self.warp, mask);
        met &= ~mask;
        for (unsigned lane = 0; lane < self.warp_threads; ++lane)
            if (mask >> lane & 1) self.warp[lane].state = State::runnable;
    } else {
        suspend();
    }
    return self.meeting.taken;
}

void* shared(const void* declaration, std::size_t size) {
    // What a block may declare: more is had only by asking, and then not on every device.
    constexpr std::size_t most_bytes = 48 << 10;
    Shared& part = current->block->shared[declaration];
    if (!part.memory) {
        part = {std::make_unique_for_overwrite<char[]>(size), size};
        std::memset(part.memory.get(), 0xa5, size);
        current->block->shared_bytes += size;
        if (current->block->shared_bytes > most_bytes)
            fail("has declared " + std::to_string(current->block->shared_bytes) + " bytes of shared memory, more than 48 KiB");
    }
    return part.memory.get();
}

Control& control() { return settings; }

std::string take_error() { return std::exchange(error, {}); }

}  // namespace emulated
