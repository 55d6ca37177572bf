// Atomics, fences and waiting. Threads change places only where they wait, so that plain memory
// accesses are atomic already; now and then one pauses first, which tries other orders.
#pragma once

#include "machine.h"

#define EMULATED_ATOMIC(word, type, expression) \
    EMULATED_UNWATCHED inline type word(type* at, type value) {              \
        emulated::perhaps_pause();              \
        emulated::races::atomic(at, sizeof(type), EMULATED_CALLER); \
        const type old = *at;                   \
        *at = expression;                       \
        return old;                             \
    }
#define EMULATED_ATOMICS(type)                              \
    EMULATED_ATOMIC(atomicAdd, type, old + value)           \
    EMULATED_ATOMIC(atomicExch, type, value)                \
    EMULATED_ATOMIC(atomicMin, type, value < old ? value : old) \
    EMULATED_ATOMIC(atomicMax, type, old < value ? value : old) \
    EMULATED_ATOMIC(atomicAnd, type, old& value)            \
    EMULATED_ATOMIC(atomicOr, type, old | value)            \
    EMULATED_ATOMIC(atomicXor, type, old ^ value)           \
    EMULATED_UNWATCHED inline type atomicCAS(type* at, type expected, type value) { \
        emulated::perhaps_pause();                          \
        emulated::races::atomic(at, sizeof(type), EMULATED_CALLER); \
        const type old = *at;                               \
        if (old == expected) *at = value;                   \
        return old;                                         \
    }
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(unsigned long long)
EMULATED_ATOMIC(atomicSub, int, old - value)
EMULATED_ATOMIC(atomicSub, unsigned, old - value)
#undef EMULATED_ATOMICS
#undef EMULATED_ATOMIC

inline void __threadfence() {
    emulated::perhaps_pause();
    emulated::races::fence();
}
inline void __nanosleep(unsigned) { emulated::pause(); }
