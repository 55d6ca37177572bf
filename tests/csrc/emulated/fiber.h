// A fiber: a stack of its own, and a switch to it and back that costs a few nanoseconds.
#pragma once

#include <cstddef>

namespace emulated {

// Where a fiber, or the scheduler, goes on. The stack itself is all that it refers to.
struct Context {
    void* stack_pointer = nullptr;
    void* other = nullptr;  // what sanitizers and ucontext keep
};

// The lowest byte of a stack and its length.
struct Stack {
    char* bottom = nullptr;
    std::size_t size = 0;
};

// Prepares a fiber that starts in `entry`, which must never return.
Context prepare(const Stack& stack, void (*entry)());

// Suspends `from`, whose stack is `*leaving` or the scheduler's, and resumes `to`.
void change(Context& from, const Context& to, const Stack& into);

// Called first by every fiber that starts: completes the switch that led to it.
void started();

// Stacks that fibers left without returning carry marks of the address sanitizer: removes them.
void forget(const Stack& stack);

// The stack that the scheduler runs on, known once a fiber has started.
const Stack& scheduler_stack();

}  // namespace emulated
