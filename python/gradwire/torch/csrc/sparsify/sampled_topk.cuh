// Deep Gradient Compression (Lin et al., ICLR 2018): a threshold from a sample, corrected by what it
// selects.
#pragma once

#include "sparsify/topk.cuh"

namespace gradwire {

// Which entries are looked at, and how many of them stand for those wanted.
struct SamplePlan {
    std::uint64_t stride, samples, above;
};

__host__ __device__ inline SamplePlan plan_sample(const Sparsify& options, std::uint64_t numel) {
    const double fewest = ceil(2.0 / options.ratio);
    if (static_cast<double>(numel) <= fewest) return {1, numel, share_of(options.ratio, numel)};
    const double share = static_cast<double>(share_of(options.sample_ratio, numel));
    const std::uint64_t wanted = static_cast<std::uint64_t>(share > fewest ? share : fewest);
    std::uint64_t stride = (numel + 32 * wanted - 1) / (32 * wanted) * 32 + 1;
    while (numel / stride < wanted) stride -= 8;
    const std::uint64_t samples = numel / stride;
    return {stride, samples, share_of(options.ratio, samples)};
}

// The smallest of the largest magnitudes of the sample.
template <class Entry>
__device__ float sampled_threshold(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel,
                                   std::uint64_t key, const SamplePlan& plan, Entry entry) {
    if (plan.samples == 0) return 0.0f;
    const bool strided = options.strided || plan.samples == numel;
    const std::uint64_t start = static_cast<std::uint64_t>(key_bits(key, 0)) * plan.stride >> 32;
    return sampled_magnitude(team, desk, plan.samples, plan.above, entry, [=](std::uint64_t j) {
        const std::uint64_t drawn = static_cast<std::uint64_t>(key_bits(key, static_cast<std::uint32_t>(j))) * numel >> 32;
        return strided ? start + j * plan.stride : drawn;
    });
}

template <class Entry>
__device__ Request sampled_request(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel,
                                   std::uint64_t key, const Maybe& tracked, Entry entry) {
    const SamplePlan plan = plan_sample(options, numel);
    const float threshold = sampled_threshold(team, desk, options, numel, key, plan, entry);
    const std::uint64_t k = share_of(options.ratio, numel);
    float bound;
    if (threshold == 0.0f) {
        bound = tracked.there ? tracked.value : first_bound(team, desk, numel, k, entry);
    } else if (plan.above < 100 && plan.samples < numel) {
        // Chance alone leaves too few above it now and then: a lower one is tried at no cost.
        const float below = next_down(static_cast<float>(options.lower) * threshold);
        bound = below > 0.0f ? below : 0.0f;
    } else {
        bound = next_down(threshold);
    }
    if (team.rank == 0 && threadIdx.x == 0) desk.sampled = threshold;
    return {1, bound, survivors_cap(k, numel), 0, 0.0f};
}

// How many magnitudes are at or above the threshold and not zero; where they are far too many, the
// whole tensor.
__device__ inline std::uint64_t count_from(ScannedTensor& scanned, std::uint64_t k, float threshold) {
    const float down = next_down(threshold), below = down > 0.0f ? down : 0.0f;
    if (!scanned.covers(below) && !scanned.compact(below, survivors_cap(k, scanned.numel))) return scanned.numel;
    return scanned.count_above(below);
}

__device__ GRADWIRE_APART inline Selected select_sampled(ScannedTensor& scanned, float sampled, Tracker& tracker) {
    const Sparsify& options = scanned.options;
    const std::uint64_t k = share_of(options.ratio, scanned.numel);
    float threshold = sampled;
    std::uint64_t count = count_from(scanned, k, threshold);
    for (int round = 0; round < 10; ++round) {
        const double achieved = static_cast<double>(count) / static_cast<double>(k);
        if (threshold == 0.0f) break;
        if (achieved < options.lower)
            threshold *= static_cast<float>(options.lower);
        else if (achieved > options.upper && !options.resample)
            threshold *= static_cast<float>(options.upper);
        else
            break;
        count = count_from(scanned, k, threshold);
    }
    if (threshold > 0.0f && count <= k) {
        scanned.survivors.keep_above(scanned.team, next_down(threshold));
        return {k, true, threshold, 0.0f};
    }
    const Kept kept = keep_largest(scanned, k);
    track(k, scanned.numel, kept, tracker);
    return {k, true, kept.threshold, 0.0f};
}

}  // namespace gradwire
