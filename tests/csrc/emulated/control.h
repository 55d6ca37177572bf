// What tests set, and ask, of the machine that kernels run on.
#pragma once

#include <string>

namespace emulated {

struct Control {
    unsigned seed = 1;      // of the orders that blocks, warps and lanes run in; counts up by launch
    unsigned resident = 3;  // blocks that run in turns
    unsigned processors = 2;  // of the device: two blocks are resident on each
    unsigned launches = 0;  // made so far
    unsigned loaded = 0;    // kernels whose attributes were asked for
    unsigned refused = 0;   // which of those the device has no code for
};

Control& control();

// The error that ended a launch, or nothing. Until it is taken, every launch fails.
std::string take_error();

}  // namespace emulated
