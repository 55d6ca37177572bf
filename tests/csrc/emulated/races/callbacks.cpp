// The functions that code compiled with -fsanitize=thread calls. Their usual library is not linked:
// only the instrumentation is wanted, since threads are fibers and the order is CUDA's.
#include "callbacks.h"

using namespace emulated::races;

#define CODE __builtin_return_address(0)

#define ACCESSES(size)                                                                            \
    void __tsan_read##size(void* at) { aligned(at, size, CODE), weak(at, size, false, CODE); }    \
    void __tsan_write##size(void* at) { aligned(at, size, CODE), weak(at, size, true, CODE); }    \
    void __tsan_unaligned_read##size(void* at) { weak(at, size, false, CODE); }                   \
    void __tsan_unaligned_write##size(void* at) { weak(at, size, true, CODE); }                   \
    void __tsan_volatile_read##size(void* at) { strong(at, size, true, false, CODE); }            \
    void __tsan_volatile_write##size(void* at) { strong(at, size, false, true, CODE); }           \
    void __tsan_unaligned_volatile_read##size(void* at) { strong(at, size, true, false, CODE); }  \
    void __tsan_unaligned_volatile_write##size(void* at) { strong(at, size, false, true, CODE); } \
    void __tsan_read_write##size(void* at) { aligned(at, size, CODE), weak(at, size, true, CODE); } \
    void __tsan_unaligned_read_write##size(void* at) { weak(at, size, true, CODE); }

extern "C" {

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* at, unsigned long size) { weak(at, static_cast<unsigned>(size), false, CODE); }
void __tsan_write_range(void* at, unsigned long size) { weak(at, static_cast<unsigned>(size), true, CODE); }
// What clang makes of copies; g++ leaves them as they are.
void* __tsan_memcpy(void* to, const void* from, unsigned long size) {
    weak(from, static_cast<unsigned>(size), false, CODE);
    weak(to, static_cast<unsigned>(size), true, CODE);
    return __builtin_memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, unsigned long size) {
    weak(from, static_cast<unsigned>(size), false, CODE);
    weak(to, static_cast<unsigned>(size), true, CODE);
    return __builtin_memmove(to, from, size);
}
void* __tsan_memset(void* at, int value, unsigned long size) {
    weak(at, static_cast<unsigned>(size), true, CODE);
    return __builtin_memset(at, value, size);
}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void* from) { enter(from); }
void __tsan_func_exit() { leave(); }
void __tsan_init() {}

}
