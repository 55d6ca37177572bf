// SIDCo (Abdelmoniem et al., MLSys 2021): a threshold from a distribution fitted to the magnitudes, in
// several stages. How reads are spared is described in rust/core/src/sparsify/sid.
#pragma once

#include "fit/controller.cuh"
#include "sparsify/topk.cuh"

namespace gradwire {

// Sweeping over so many entries costs as much as working on one survivor.
constexpr std::uint64_t sid_few = 16;

// How many entries the stages after the second are expected to need.
__device__ inline double sid_survivors(const Sparsify& options, std::uint64_t numel, const Controller& controller) {
    const std::uint64_t k = target_of(options, numel);
    const StagePlan plan = plan_stages(options, controller, k, numel);
    double second = plan.left + 1 >= 3 ? 1.5 * plan.expected(numel, 2) : 0.0;
    second = smaller(second, static_cast<double>(numel) / static_cast<double>(sid_few));
    return greater(survivors_aim(k, numel), second);
}

template <class Entry>
__device__ Request sid_request(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel,
                               const Tracker& tracker, Entry entry) {
    if (tracker.controller.rest > 0)
        return largest_request(team, desk, numel, target_of(options, numel), tracker.bound, entry);
    const double wanted = sid_survivors(options, numel, tracker.controller);
    const float bound = wanted >= static_cast<double>(numel) ? 0.0f
                        : tracker.bound.there                ? tracker.bound.value
                                              : magnitude_above(team, desk, numel, wanted, entry);
    return {1, bound, survivors_cap(static_cast<std::uint64_t>(wanted), numel), 1,
            tracker.location.there ? tracker.location.value : 0.0f};
}

// A threshold, and the moments of the exceedances over it; the same in every thread.
struct Tail {
    bool there;
    float location;
    Moments moments;
};

struct Fitted {
    bool there;
    float threshold;
    Maybe below_second;  // covers the threshold of the second stage, if later ones work on few survivors
    Maybe location;      // for the first stage of the next step
};

// Moments of the exceedances over a location, from the survivors if they are all there and few.
__device__ GRADWIRE_APART inline Moments exceedances(ScannedTensor& scanned, float location) {
    if (scanned.covers(location) && scanned.survivors.count <= scanned.numel / sid_few)
        return scanned.survivors.tail_of(scanned.team, location, scanned.numel);
    return scanned.read_moments(location);
}

// The first stage as published: fitted to the moments of all magnitudes.
__device__ inline Tail published(ScannedTensor& scanned, const StagePlan& plan) {
    const Request& request = scanned.request;
    const bool had = request.located && request.location == 0.0f;
    const Moments moments = had ? scanned.moments : scanned.read_moments(0.0f);
    const double threshold = first_threshold(moments, scanned.numel, plan.first);
    if (threshold != threshold) return {false, 0.0f, Moments{}};
    const float narrowed = static_cast<float>(threshold);
    return {true, narrowed, exceedances(scanned, narrowed)};
}

// The threshold expected for the first stage, if it is still of use.
__device__ inline Tail tracked_tail(const ScannedTensor& scanned, const StagePlan& plan) {
    const Request& request = scanned.request;
    if (!request.located || !(request.location > 0.0f)) return {false, 0.0f, Moments{}};
    const double share = static_cast<double>(scanned.moments.count) / static_cast<double>(scanned.numel);
    const double high = smaller(3.0 * plan.first, 0.9);
    const bool usable = share >= plan.first / 3.0 && share <= high;
    return {usable, request.location, scanned.moments};
}

// Where about `wanted` entries will be above, were the tail exponential between there and here.
__device__ inline Maybe next_location(float location, const Moments& tail, double wanted) {
    const double count = static_cast<double>(tail.count);
    const double next = static_cast<double>(location) + tail.sum / count * libm::log(count / wanted);
    const float narrowed = static_cast<float>(next);
    return next > 0.0 && magnitude(narrowed) < not_finite ? Maybe{narrowed, 1} : Maybe{};
}

// The multi-stage fit.
__device__ inline Fitted fit_stages(ScannedTensor& scanned, std::uint64_t k, const Tracker& tracker) {
    const std::uint64_t numel = scanned.numel;
    StagePlan plan = plan_stages(scanned.options, tracker.controller, k, numel);
    Tail first = tracked_tail(scanned, plan);
    if (!first.there) first = published(scanned, plan);
    if (!first.there) return {};
    Fitted fitted{true, first.location, Maybe{},
                  next_location(first.location, first.moments, plan.first * static_cast<double>(numel))};
    Moments tail = first.moments;
    for (std::uint32_t stage = 2; stage <= tracker.controller.stages; ++stage) {
        const float at = fitted.threshold;
        if (stage > 2) tail = exceedances(scanned, at);
        if (stage == 3 && tail.count <= numel / sid_few) {
            const double spare = tail.count <= numel / (4 * sid_few) ? 2.0 : 1.3;
            fitted.below_second = next_location(at, tail, spare * static_cast<double>(tail.count));
        }
        const double rho = plan.next(tail.count);
        if (rho != rho) break;
        const double next = tail_threshold(tail, static_cast<double>(at), rho);
        const float narrowed = static_cast<float>(next);
        if (!(next == next && narrowed > at && magnitude(narrowed) < not_finite)) break;
        fitted.threshold = narrowed;
    }
    return fitted;
}

// Keeps the entries above the fitted threshold; none, and false, where that is outside the band.
__device__ inline bool apply_fit(ScannedTensor& scanned, std::uint64_t k, float fitted, Tracker& tracker, Kept& kept) {
    const Sparsify& options = scanned.options;
    if (!scanned.covers(fitted))
        scanned.compact(fitted, options.banded ? survivors_cap(k, scanned.numel) : ~std::uint64_t(0));
    const std::uint64_t found = scanned.count_above(fitted);
    const double above = static_cast<double>(scanned.complete ? found : scanned.numel);
    const double achieved = above / static_cast<double>(k);
    observe(options, tracker.controller, achieved);
    const double most = static_cast<double>(max_count(options, scanned.numel));
    if (options.banded && !(achieved >= options.band_low && above <= most)) return false;
    kept = {fitted, scanned.request.above ? scanned.request.bound : 0.0f, scanned.survivors.count};
    scanned.survivors.keep_above(scanned.team, fitted);
    return true;
}

__device__ GRADWIRE_APART inline Selected select_sid(ScannedTensor& scanned, Tracker& tracker) {
    const Sparsify& options = scanned.options;
    const std::uint64_t k = target_of(options, scanned.numel);
    if (tracker.controller.rest > 0) {
        tracker.controller.rest -= 1;
        tracker.location = {};
        return select_topk(scanned, k, tracker);
    }
    // Nothing can be learnt from a tensor of zeros.
    const bool zeros = scanned.peak == 0;
    const Fitted fitted = zeros ? Fitted{} : fit_stages(scanned, k, tracker);
    Kept kept{};
    const bool found = fitted.there && apply_fit(scanned, k, fitted.threshold, tracker, kept);
    if (options.banded && !zeros) judge(tracker.controller, found);
    if (!found) kept = keep_largest(scanned, k);
    const float growth = track(scanned.survivors.count, scanned.numel, kept, tracker);
    tracker.location = fitted.location.there ? Maybe{fitted.location.value * growth, 1} : Maybe{};
    // Stages after the second work on what was above its threshold.
    if (fitted.below_second.there) tracker.bound = {fitted.below_second.value * growth, 1};
    return {k, true, kept.threshold, 0.0f};
}

}  // namespace gradwire
