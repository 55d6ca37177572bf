// Gaussian-k (Shi et al., 2019): a threshold from a normal distribution fitted to the values.
#pragma once

#include "fit/thresholds.cuh"
#include "sparsify/topk.cuh"

namespace gradwire {

__device__ inline std::uint64_t gaussian_cap(std::uint64_t k, std::uint64_t numel) {
    return 4 * survivors_cap(k, numel);
}

template <class Entry>
__device__ Request gaussian_request(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel,
                                    const Maybe& tracked, Entry entry) {
    const std::uint64_t k = target_of(options, numel);
    const float bound = largest_request(team, desk, numel, k, tracked, entry).bound;
    return {1, bound, gaussian_cap(k, numel), 1, 0.0f, 0, 1};
}

// The threshold that the share wanted exceeds, of the normal distribution with the values' moments.
__device__ inline float gaussian_threshold(const Moments& moments, std::uint64_t numel, std::uint64_t k) {
    const double n = static_cast<double>(numel), mean = moments.total / n;
    const double variance = (moments.sum_sq - n * mean * mean) / greater(n - 1.0, 1.0);
    const double share = static_cast<double>(k) / n;
    const double threshold = mean + sqrt(greater(variance, 0.0)) * normal_two_sided(share);
    const float narrowed = static_cast<float>(greater(threshold, 0.0));
    constexpr float most = 3.40282347e+38f;
    return narrowed < most ? narrowed : most;
}

// How many magnitudes are above the threshold; where that is known to be too many, no more than that.
__device__ inline std::uint64_t gaussian_count(ScannedTensor& scanned, std::uint64_t k, float threshold) {
    if (scanned.covers(threshold)) return scanned.count_above(threshold);
    const std::uint64_t known = scanned.survivors.count;
    if (scanned.complete && static_cast<double>(known) > 4.0 / 3.0 * static_cast<double>(k)) return known;
    if (scanned.compact(threshold, gaussian_cap(k, scanned.numel))) return scanned.count_above(threshold);
    return scanned.numel;
}

__device__ GRADWIRE_APART inline Selected select_gaussian(ScannedTensor& scanned, Tracker& tracker) {
    const Sparsify& options = scanned.options;
    const std::uint64_t numel = scanned.numel, k = target_of(options, numel), most = max_count(options, numel);
    const float infinite = float_of(not_finite);
    // The threshold, if the survivors of a first read could include all that is above it.
    auto coverable = [&](float threshold, std::uint64_t count) {
        const bool few = count <= gaussian_cap(k, numel) / 4 * 3;
        return scanned.covers(threshold) && few ? threshold : infinite;
    };
    float threshold = gaussian_threshold(scanned.moments, numel, k), lowest = infinite;
    std::uint64_t count = gaussian_count(scanned, k, threshold);
    for (std::uint32_t round = 0; round < options.rounds; ++round) {
        const float here = coverable(threshold, count);
        lowest = here < lowest ? here : lowest;
        const double achieved = static_cast<double>(count) / static_cast<double>(k);
        if (achieved < 2.0 / 3.0)
            threshold *= 0.5f;
        else if (achieved > 4.0 / 3.0)
            threshold *= 1.5f;
        else
            break;
        count = gaussian_count(scanned, k, threshold);
    }
    if (options.banded && !scanned.covers(threshold))
        count = scanned.compact(threshold, most) ? scanned.count_above(threshold) : numel;
    const float here = coverable(threshold, count);
    lowest = here < lowest ? here : lowest;
    const double achieved = static_cast<double>(count) / static_cast<double>(k);
    const bool inside = !options.banded || achieved >= options.band_low;
    Kept kept;
    if (count > 0 && inside && count <= most) {
        if (!scanned.covers(threshold)) scanned.compact(threshold, ~std::uint64_t(0));
        const float bound = scanned.request.above ? scanned.request.bound : 0.0f;
        kept = {threshold, bound, scanned.survivors.count};
        scanned.survivors.keep_above(scanned.team, threshold);
    } else {
        kept = keep_largest(scanned, k);
    }
    track(scanned.survivors.count, numel, kept, tracker);
    // The next step will try nearly the same thresholds: what covers the lowest is enough.
    if (tracker.bound.there && lowest < infinite) tracker.bound.value = 0.95f * lowest;
    return {k, true, kept.threshold, 0.0f};
}

}  // namespace gradwire
