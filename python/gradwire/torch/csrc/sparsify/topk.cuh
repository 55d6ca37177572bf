// Exact top-k in one read of the tensor, above a bound tracked from the last step; ties go to the lower position. The
// bound never changes what is selected.
#pragma once

#include "fit/thresholds.cuh"
#include "sparsify/amount.cuh"
#include "sparsify/marks.cuh"
#include "sparsify/sample.cuh"

namespace gradwire {

// What a selection of the largest came to.
struct Kept {
    float threshold;  // the smallest magnitude kept
    float bound;      // the bound that served in the end, and how many entries were above it
    std::uint64_t survivors;
};

// A bound to begin with for the `k` largest of a tensor that nothing is known of.
template <class Entry>
__device__ float first_bound(Team& team, Desk& desk, std::uint64_t numel, std::uint64_t k, Entry entry) {
    const double aim = survivors_aim(k, numel);
    return aim >= static_cast<double>(numel) ? 0.0f : magnitude_above(team, desk, numel, aim, entry);
}

// Whether the `k` largest of the tensor are among the survivors.
__device__ inline bool suffices(const ScannedTensor& scanned, std::uint64_t k) {
    return scanned.complete && (scanned.covers(0.0f) || scanned.survivors.count >= k);
}

// Keeps the `k` largest survivors; the smallest magnitude kept, zero if none is.
__device__ GRADWIRE_APART inline float narrow(Team& team, Survivors& survivors, std::uint64_t k) {
    if (k == 0 || survivors.count == 0) {
        survivors.count = 0;
        return 0.0f;
    }
    const List list = survivors.list();
    const Kth kth = kth_largest(team, survivors.count, k < survivors.count ? k : survivors.count,
                                [&list](std::uint64_t i) { return magnitude(list.values[i]); });
    if (survivors.count > k) survivors.keep_from(team, kth.bits, kth.ties);
    return float_of(kth.bits);
}

// Marks what is above the k-th magnitude, and of those equal to it, too many to keep, as many as are
// wanted in the order of positions.
__device__ GRADWIRE_APART inline void take_ties(ScannedTensor& scanned, const Search& search) {
    Team& team = scanned.team;
    Desk& desk = scanned.desk;
    const std::uint32_t bits = search.prefix;
    const std::uint64_t ties = bits == 0 ? 0 : search.rank;
    const std::uint64_t chunks = pieces(scanned.numel, chunk_entries);
    const WrittenEntry& entry = scanned.entry;
    // How many ties each block has in its chunks.
    std::uint64_t own = 0;
    const std::uint64_t begin = team.first(chunks) * chunk_entries;
    const std::uint64_t end = team.last(chunks) * chunk_entries < scanned.numel
                                  ? team.last(chunks) * chunk_entries
                                  : scanned.numel;
    for (std::uint64_t i = begin + threadIdx.x; i < end; i += team_threads) own += magnitude(entry(i)) == bits;
    std::uint64_t before = team.sums(block_reduce<team_threads>(own, Sum{})).before;
    for (std::uint64_t chunk = team.first(chunks); chunk < team.last(chunks); ++chunk) {
        const std::uint64_t first = chunk * chunk_entries;
        const std::uint64_t last = first + chunk_entries < scanned.numel ? first + chunk_entries : scanned.numel;
        std::uint32_t marked = 0;
        for (std::uint64_t at = first; at < last; at += team_threads) {
            const std::uint64_t i = at + threadIdx.x;
            const std::uint32_t found = i < last ? magnitude(entry(i)) : 0;
            const bool tie = i < last && found == bits;
            const auto rank = block_scan<team_threads>(std::uint32_t(tie));
            const bool taken = (found > bits && found < not_finite) || (tie && before + rank.before < ties);
            const std::uint32_t word = __ballot_sync(all_lanes, i < last && taken);
            if (lane() == 0 && i < last) desk.mask[i / 32] = word;
            marked += lane() == 0 ? __popc(word) : 0;
            before += rank.total;
        }
        marked = block_reduce<team_threads>(marked, Sum{});
        if (threadIdx.x == 0) desk.marked[chunk] = marked;
    }
    team.sync();
    list_marks(scanned);
}

// Searches the whole tensor, a digit of the k-th magnitude in each read, until few enough entries are
// left to keep.
__device__ GRADWIRE_APART inline void search_all(ScannedTensor& scanned, std::uint64_t k) {
    const std::uint64_t cap = survivors_cap(k, scanned.numel);
    Team& team = scanned.team;
    const WrittenEntry& entry = scanned.entry;
    Search search(k);
    while (!search.is_done()) {
        next_digit(team, search, [&](auto take) {
            for (std::uint64_t i = team.first(scanned.numel) + threadIdx.x; i < team.last(scanned.numel);
                 i += team_threads)
                take(magnitude(entry(i)));
        });
        if (k - search.rank + search.inside <= cap) {
            const std::uint32_t below = search.prefix == 0 ? 0 : search.prefix - 1;
            scanned.compact(float_of(below), cap);
            return;
        }
    }
    take_ties(scanned, search);
}

// Keeps the `k` largest magnitudes of the tensor. Fewer are kept only where the tensor has fewer that
// are not zero.
__device__ GRADWIRE_APART inline Kept keep_largest(ScannedTensor& scanned, std::uint64_t k) {
    if (!suffices(scanned, k)) {
        const float bound = first_bound(scanned.team, scanned.desk, scanned.numel, k, scanned.entry);
        scanned.compact(bound, survivors_cap(k, scanned.numel));
    }
    if (!suffices(scanned, k)) search_all(scanned, k);
    const float bound = scanned.request.above ? scanned.request.bound : 0.0f;
    const std::uint64_t survivors = scanned.survivors.count;
    return {narrow(scanned.team, scanned.survivors, k), bound, survivors};
}

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
