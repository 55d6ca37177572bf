// What a reader says of a frame. Plain data, the same on host and device.
#pragma once

#include <cstdint>

namespace gradwire {

// One for each class of error that `gradwire.decode` raises. The words of the error are those of the
// CPU's reader: a frame that is refused here is read there once more.
enum class Verdict : std::uint32_t {
    good,
    corrupt,
    truncated,
    unsupported,
    too_large,  // more elements than there is room for
    numel,      // fewer
    outside,    // values of another package, which only the host can read
    seeded,     // drawn positions, and the caller has given no room for them
    absent,     // not one of a caller's: there is no frame, which is good
};

}  // namespace gradwire
