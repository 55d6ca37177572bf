// Adaptive quantization (Dryden et al., MLHPC 2016): one threshold for each sign.
#pragma once

#include "sparsify/topk.cuh"

namespace gradwire {

// One in `proportion` of so many entries, and one at least.
__device__ inline std::uint64_t two_sided_share(const Sparsify& options, std::uint64_t len) {
    const double wanted = static_cast<double>(len) / options.proportion;
    const std::uint64_t share = wanted >= 1.0 ? static_cast<std::uint64_t>(wanted) : 1;
    return share < len ? share : len;
}

struct TwoThresholds {
    float positive, negative;
};

// The smallest entry of each sign among those that `visit(take)` shows, mirrored where a sign has
// none; with zeros among them, every non-zero is beyond both.
template <class Visit>
__device__ TwoThresholds thresholds_of(Team& team, Desk& desk, Visit visit) {
    const std::uint32_t infinite = not_finite;
    std::uint32_t positive = infinite, negative = infinite, zero = 0;
    visit([&](float value) {
        const std::uint32_t bits = magnitude(value);
        if (bits == 0)
            zero = 1;
        else if (value > 0.0f)
            positive = bits < positive ? bits : positive;
        else
            negative = bits < negative ? bits : negative;
    });
    positive = block_reduce<team_threads>(positive, Least{});
    negative = block_reduce<team_threads>(negative, Least{});
    zero = block_reduce<team_threads>(zero, Greatest{});
    if (team.size > 1) {
        std::uint32_t* const extremes = desk.extremes;
        if (team.rank == 0 && threadIdx.x == 0) {
            extremes[0] = extremes[1] = infinite;
            extremes[2] = 0;
        }
        team.sync();
        if (threadIdx.x == 0) {
            atomicMin(extremes, positive);
            atomicMin(extremes + 1, negative);
            atomicMax(extremes + 2, zero);
        }
        team.sync();
        positive = extremes[0];
        negative = extremes[1];
        zero = extremes[2];
        team.sync();
    }
    const bool above = positive < infinite, below = negative < infinite;
    if (zero || !(above || below)) return {0.0f, -0.0f};
    if (!below) return {float_of(positive), -float_of(positive)};
    if (!above) return {float_of(negative), -float_of(negative)};
    return {float_of(positive), -float_of(negative)};
}

template <class Entry>
__device__ Request two_sided_request(Team& team, Desk& desk, const Sparsify& options, std::uint64_t numel,
                                     std::uint64_t key, const Maybe& tracked, Entry entry) {
    if (!options.sampled || numel <= options.sample)
        return largest_request(team, desk, numel, two_sided_share(options, numel), tracked, entry);
    const std::uint64_t samples = options.sample;
    std::uint32_t* const keys = desk.lists[0].positions;
    team.sync();
    for (std::uint64_t j = team.first(samples) + threadIdx.x; j < team.last(samples); j += team_threads) {
        const std::uint32_t bits =
            float_bits(entry(static_cast<std::uint64_t>(key_bits(key, static_cast<std::uint32_t>(j))) * numel >> 32));
        keys[j] = (bits & 0x7fffffff) >= not_finite ? 0 : bits;
    }
    team.sync();
    auto bits = [keys](std::uint64_t j) { return keys[j] & 0x7fffffff; };
    const std::uint32_t least = kth_largest(team, samples, two_sided_share(options, samples), bits).bits;
    const TwoThresholds found = thresholds_of(team, desk, [&](auto take) {
        for (std::uint64_t j = team.first(samples) + threadIdx.x; j < team.last(samples); j += team_threads)
            if (bits(j) >= least) take(float_of(keys[j]));
    });
    if (team.rank == 0 && threadIdx.x == 0) {
        desk.positive = found.positive;
        desk.negative = found.negative;
    }
    const float closer = found.positive < -found.negative ? found.positive : -found.negative;
    const float below = next_down(closer);
    return {1, below > 0.0f ? below : 0.0f, ~std::uint64_t(0), 0, 0.0f, 0, 0};
}

__device__ GRADWIRE_APART inline Selected select_two_sided(ScannedTensor& scanned, TwoThresholds thresholds, Tracker& tracker) {
    const Sparsify& options = scanned.options;
    Team& team = scanned.team;
    const std::uint64_t numel = scanned.numel, target = two_sided_share(options, numel);
    if (!options.sampled || numel <= options.sample) {
        const Kept kept = keep_largest(scanned, target);
        track(target, numel, kept, tracker);
        const Survivors& survivors = scanned.survivors;
        const List list = survivors.list();
        thresholds = thresholds_of(team, scanned.desk, [&](auto take) {
            for (std::uint64_t i = team.first(survivors.count) + threadIdx.x; i < team.last(survivors.count);
                 i += team_threads)
                take(list.values[i]);
        });
    }
    scanned.survivors.keep_outside(team, thresholds.negative, thresholds.positive);
    float threshold = thresholds.positive < -thresholds.negative ? thresholds.positive : -thresholds.negative;
    const std::uint64_t most = max_count(options, numel);
    if (scanned.survivors.count > most) threshold = narrow(team, scanned.survivors, most);
    return {target, true, threshold, 0.0f};
}

}  // namespace gradwire
