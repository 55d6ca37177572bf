// Magnitudes of a few entries, to guess a bound from: what is selected with its help is checked.
#pragma once

#include "rng.cuh"
#include "sparsify/radix.cuh"

namespace gradwire {

constexpr std::uint64_t sample_entries = 16384;

// A fixed pseudo-random place in the interval, so that rows and columns do not resonate.
__device__ inline std::uint64_t jitter(std::uint64_t j, std::uint64_t interval) {
    const std::uint64_t mixed = (j + 1) * golden >> 32;
    return mixed * interval >> 32;
}

// Bits of a magnitude, zero for what is not finite: that is reported by the read, and must not hide
// the rest here.
__device__ inline std::uint32_t sampled_bits(float value) {
    const std::uint32_t bits = magnitude(value);
    return bits >= not_finite ? 0 : bits;
}

// The `rank`-th largest magnitude of a sample, whose entries are at `place(j)`.
template <class Entry, class Place>
__device__ float sampled_magnitude(Team& team, Desk& desk, std::uint64_t count, std::uint64_t rank, Entry entry, Place place) {
    std::uint32_t* const keys = desk.lists[0].positions;
    team.sync();
    for (std::uint64_t j = team.first(count) + threadIdx.x; j < team.last(count); j += team_threads)
        keys[j] = sampled_bits(entry(place(j)));
    team.sync();
    const Kth kth = kth_largest(team, count, rank, [keys](std::uint64_t j) { return keys[j]; });
    team.sync();
    return float_of(kth.bits);
}

// A magnitude that an estimated `wanted` of the entries exceed.
template <class Entry>
__device__ GRADWIRE_APART float magnitude_above(Team& team, Desk& desk, std::uint64_t numel, double wanted, Entry entry) {
    const std::uint64_t interval = numel / sample_entries > 1 ? numel / sample_entries : 1;
    const std::uint64_t looked_at = numel / interval;
    const double estimate = ceil(wanted / static_cast<double>(interval));
    const double rank = estimate > 4.0 ? estimate : 4.0;
    if (looked_at == 0 || rank >= static_cast<double>(looked_at)) return 0.0f;
    return sampled_magnitude(team, desk, looked_at, static_cast<std::uint64_t>(rank) + 1, entry,
                             [=](std::uint64_t j) { return j * interval + jitter(j, interval); });
}

}  // namespace gradwire
