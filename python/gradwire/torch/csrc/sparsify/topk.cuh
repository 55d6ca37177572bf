// Exact top-k in one read of the tensor, above a bound tracked from the last step.
#pragma once

#include "fit/thresholds.cuh"
#include "sparsify/largest.cuh"

namespace gradwire {

// What the first read gathers for the `k` largest.
template <class Entry>
__device__ Request largest_request(Team& team, Desk& desk, std::uint64_t numel, std::uint64_t k,
                                   const Maybe& tracked, Entry entry) {
    const bool everything = survivors_aim(k, numel) >= static_cast<double>(numel);
    const float bound = everything ? 0.0f
                        : tracked.there ? tracked.value
                                        : first_bound(team, desk, numel, k, entry);
    return {1, bound, survivors_cap(k, numel), 0, 0.0f};
}

// Sets the bound for the next step; the factor by which magnitudes are expected to grow.
//
// Between the bound and the threshold of this step the tail is taken to be exponential: its slope
// follows from how many entries survived each. The threshold is expected to grow or shrink as it did
// the last time.
__device__ GRADWIRE_APART inline float track(std::uint64_t k, std::uint64_t numel, const Kept& kept, Tracker& tracker) {
    const double top = kept.threshold, wanted = static_cast<double>(k);
    const double survivors = static_cast<double>(kept.survivors);
    double guess = 0.9 * top;
    if (survivors > 1.1 * wanted && kept.bound < kept.threshold) {
        const double slope = (top - static_cast<double>(kept.bound)) / libm::log(survivors / wanted);
        guess = top - slope * libm::log(survivors_aim(k, numel) / wanted);
    }
    const double growth =
        tracker.threshold.there ? clamp(top / static_cast<double>(tracker.threshold.value), 0.8, 1.25) : 1.0;
    const double next = clamp(guess, 0.25 * top, 0.98 * top) * growth;
    const float narrowed = static_cast<float>(next);
    // Of a tensor of zeros nothing can be learnt.
    const bool usable = k > 0 && kept.threshold > 0.0f && magnitude(narrowed) < not_finite;
    tracker.bound = usable ? Maybe{narrowed, 1} : Maybe{};
    tracker.threshold = usable ? Maybe{kept.threshold, 1} : Maybe{};
    return static_cast<float>(growth);
}

__device__ inline Selected select_topk(ScannedTensor& scanned, std::uint64_t k, Tracker& tracker) {
    const Kept kept = keep_largest(scanned, k);
    track(scanned.survivors.count, scanned.numel, kept, tracker);
    return {k, true, kept.threshold, 0.0f};
}

}  // namespace gradwire
