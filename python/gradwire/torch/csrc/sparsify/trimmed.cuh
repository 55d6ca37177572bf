// RedSync (Fang et al., JPDC 2019): thresholds between the mean and the largest magnitude.
#pragma once

#include "sparsify/topk.cuh"

namespace gradwire {

template <class Entry>
__device__ Request trimmed_request(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel,
                                   const Maybe& tracked, Entry entry) {
    Request request = largest_request(team, desk, numel, max_count(options, numel), tracked, entry);
    request.located = 1;
    request.location = 0.0f;
    return request;
}

// The threshold at a share `r` of the way from the mean magnitude to the largest.
__device__ inline float trimmed_threshold(const ScannedTensor& scanned, double r) {
    const double mean = scanned.moments.sum / static_cast<double>(scanned.numel);
    const double most = static_cast<double>(float_of(scanned.peak));
    return static_cast<float>(mean + r * (most - mean));
}

// Keeps the survivors above a threshold that is covered.
__device__ inline Kept keep_trimmed(ScannedTensor& scanned, float threshold) {
    const float bound = scanned.request.above ? scanned.request.bound : 0.0f;
    const Kept kept{threshold, bound, scanned.survivors.count};
    scanned.survivors.keep_above(scanned.team, threshold);
    scanned.request = {1, threshold > bound ? threshold : bound, ~std::uint64_t(0), 0, 0.0f, 0, 0};
    return kept;
}

__device__ GRADWIRE_APART inline Selected select_trimmed(ScannedTensor& scanned, Tracker& tracker) {
    const Sparsify& options = scanned.options;
    const std::uint64_t numel = scanned.numel, k = target_of(options, numel), most = max_count(options, numel);
    bool found = false;
    Kept kept{};
    if (scanned.peak == 0) {
    } else if (!options.searched) {
        // Trims the survivors for the exact selection, as long as they are all that is above.
        for (double r = 1.0 - options.step; r > 0.0; r -= options.step) {
            const float threshold = trimmed_threshold(scanned, r);
            if (!scanned.covers(threshold)) break;
            if (scanned.count_above(threshold) >= k) {
                keep_trimmed(scanned, threshold);
                break;
            }
        }
    } else {
        double low = 0.0, high = 1.0;
        while (high - low > options.step && !found) {
            const double r = 0.5 * (low + high);
            const float threshold = trimmed_threshold(scanned, r);
            const bool many = scanned.complete && scanned.survivors.count > most;
            const bool covered = scanned.covers(threshold) ||
                                 (!many && scanned.compact(threshold, survivors_cap(most, numel)));
            // What is not covered is more than was compacted, which is too many.
            const std::uint64_t count = covered ? scanned.count_above(threshold) : 0;
            if (covered && count < k) {
                high = r;
            } else if (covered && count <= most) {
                kept = keep_trimmed(scanned, threshold);
                found = true;
            } else {
                low = r;
            }
        }
    }
    if (!found) kept = keep_largest(scanned, k);
    track(scanned.survivors.count, numel, kept, tracker);
    return {k, true, kept.threshold, 0.0f};
}

}  // namespace gradwire
