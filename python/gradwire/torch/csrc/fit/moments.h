// Sufficient statistics of a set of magnitudes, or of exceedances over a location.
#pragma once

#include <cstdint>

namespace gradwire {

struct Moments {
    std::uint64_t count;  // magnitudes that were summed; zeros are not among them
    std::uint64_t zeros;
    double sum, sum_sq;
};

}  // namespace gradwire
