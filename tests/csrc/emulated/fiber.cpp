#include "fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMULATED_ASAN 1
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <new>
#include <ucontext.h>
#endif

namespace emulated {

namespace {
Stack scheduler;
}

const Stack& scheduler_stack() { return scheduler; }

#if defined(__x86_64__) || defined(__aarch64__)

extern "C" void emulated_switch(void** save, void* load);

#if defined(__x86_64__)

// Saves what the ABI lets a callee keep, on the stack that is left; restores it from the other.
asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, . - emulated_switch
)");

Context prepare(const Stack& stack, void (*entry)()) {
    auto top = reinterpret_cast<std::uintptr_t>(stack.bottom + stack.size) & ~std::uintptr_t{15};
    auto* word = reinterpret_cast<void**>(top);
    *--word = nullptr;  // where a caller's address would be: functions expect the stack so
    *--word = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--word = nullptr;
    return {word, nullptr};
}

#else

asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, %function
emulated_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulated_switch, . - emulated_switch
)");

Context prepare(const Stack& stack, void (*entry)()) {
    auto top = reinterpret_cast<std::uintptr_t>(stack.bottom + stack.size) & ~std::uintptr_t{15};
    auto* word = reinterpret_cast<void**>(top) - 20;
    for (int saved = 0; saved < 20; ++saved) word[saved] = nullptr;
    word[11] = reinterpret_cast<void*>(entry);  // x30, the address that `ret` goes to
    return {word, nullptr};
}

#endif

static void jump(Context& from, const Context& to) {
    emulated_switch(&from.stack_pointer, to.stack_pointer);
}

#else

Context prepare(const Stack& stack, void (*entry)()) {
    auto* context = new (stack.bottom) ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = stack.bottom + 4096;
    context->uc_stack.ss_size = stack.size - 4096;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return {context, nullptr};
}

static void jump(Context& from, const Context& to) {
    static_assert(sizeof(ucontext_t) <= 4096);
    if (from.stack_pointer == nullptr) from.stack_pointer = new ucontext_t;  // the scheduler's
    swapcontext(static_cast<ucontext_t*>(from.stack_pointer),
                static_cast<ucontext_t*>(to.stack_pointer));
}

#endif

void change(Context& from, const Context& to, [[maybe_unused]] const Stack& into) {
#ifdef EMULATED_ASAN
    __sanitizer_start_switch_fiber(&from.other, into.bottom, into.size);
#endif
    jump(from, to);
#ifdef EMULATED_ASAN
    __sanitizer_finish_switch_fiber(from.other, nullptr, nullptr);
#endif
}

void started() {
#ifdef EMULATED_ASAN
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    scheduler = {static_cast<char*>(const_cast<void*>(bottom)), size};
#endif
}

void forget([[maybe_unused]] const Stack& stack) {
#ifdef EMULATED_ASAN
    __asan_unpoison_memory_region(stack.bottom, stack.size);
#endif
}

}  // namespace emulated
