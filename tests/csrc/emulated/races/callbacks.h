// What the compiler's thread instrumentation tells of a kernel, as the detector takes it.
#pragma once

namespace emulated::races {

// An ordinary access, and one that is volatile or atomic; `code` is where.
void weak(const void* at, unsigned size, bool writes, const void* code);
void strong(const void* at, unsigned size, bool reads, bool writes, const void* code);

// An access whose address must be a multiple of its size.
void aligned(const void* at, unsigned size, const void* code);

// A function begins, called from there, and ends.
void enter(const void* from);
void leave();

}  // namespace emulated::races
