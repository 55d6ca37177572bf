// How the values of a frame are coded, as a spec says it. Plain data, the same on host and device.
#pragma once

#include <cstdint>

namespace gradwire {

// The ids that the header of a frame has. The next one is that of affine, which has no kernels.
enum class Quantizer : std::uint8_t {
    float32,
    bfloat16,
    float16,
    float16_scaled,
    float8_e5m2,
    float8_e4m3,
    uniform,
    sign_scale,
    two_means,
    ternary,
    codebook,
    exponent,
};

// Which magnitude goes with the signs of `sign_scale`: the mean, the root of the mean square, or what
// the sparsifier tells.
enum class Magnitude : std::uint8_t { mean, root_mean_square, told };

// What a block of `uniform` reaches up to.
enum class Norm : std::uint8_t { l2, largest };

struct Quantize {
    Quantizer kind = Quantizer::float32;
    std::uint8_t bits = 0;  // of a code: uniform 2 to 8, codebook 1 to 4
    Magnitude magnitude = Magnitude::mean;
    Norm norm = Norm::l2;
    bool stochastic = false;  // float8
    // Entries that share a scale: of uniform; and of float8, where 0 says that there are no scales.
    // Positions in a column of two_means, where 0 says that all are in one.
    std::uint32_t block = 0;
    float clip = 0;  // of ternary, in standard deviations; 0 is none
    std::uint64_t seed = 0;
};

}  // namespace gradwire
