// Where in the sources something happens: an address in the code, and those that led to it.
#pragma once

#include <string>

namespace emulated::races {

// A call, from where, in what was called from where.
struct Frame {
    const void* from;
    const Frame* up;
};

// The frame of a call in the function that `up` is the frame of. There is one of each.
const Frame* frame_of(const Frame* up, const void* from);

struct Place {
    const void* code = nullptr;  // after the call that tells of it
    const Frame* frame = nullptr;
};

// The lines of the kernels' sources, the innermost first: "block.cuh:26, from sums.cuh:40".
std::string lines(const Place& place);

}  // namespace emulated::races
