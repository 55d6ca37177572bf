// How the positions of a frame may be coded. Plain data, the same on host and device.
#pragma once

#include <cstdint>

namespace gradwire {

// How a codec may code positions: `automatic` is the smallest of the others for each frame.
enum class IndexCoding : std::uint32_t { automatic, elias_fano, rice, bitmap };

// What a writer knows of its positions beforehand: nothing; as a rule `k` of them in each chunk of
// `size`; or that they were drawn from a key.
enum class PatternKind : std::uint32_t { any, chunks, subset, run };

struct Pattern {
    PatternKind kind = PatternKind::any;
    std::uint32_t size = 0, k = 0;  // of chunks
};

}  // namespace gradwire
