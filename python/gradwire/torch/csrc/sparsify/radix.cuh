// The k-th largest magnitude by histograms over its bits, most significant digit first.
//
// Magnitudes order like their bits. Three digits of 11, 10 and 10 bits cover the 31 that are not the
// sign: the first is the exponent and three bits of the mantissa.
#pragma once

#include "scan/survivors.cuh"

namespace gradwire {

constexpr unsigned digits = 3;

__device__ inline unsigned digit_shift(unsigned digit) { return 20 - 10 * digit; }
__device__ inline unsigned digit_width(unsigned digit) { return digit == 0 ? 11 : 10; }

// The k-th largest of a set of magnitudes.
struct Kth {
    std::uint32_t bits;
    std::uint64_t equal;  // magnitudes that equal it
    std::uint64_t ties;   // and how many of those belong to the k largest
};

struct DigitShared {
    std::uint32_t bins[widest_digit];
};

// A search, a digit at a time.
struct Search {
    std::uint32_t prefix = 0;  // digits found so far, in place
    unsigned found = 0;
    std::uint64_t rank;        // the one wanted among the magnitudes that begin with the prefix
    std::uint64_t inside = ~std::uint64_t(0);  // how many do

    __device__ explicit Search(std::uint64_t rank) : rank(rank) {}
    __device__ bool is_done() const { return found == digits; }
};

// The histogram of a block.
__device__ inline DigitShared& digit_bins() {
    GRADWIRE_SHARED(DigitShared, shared);
    return shared;
}

__device__ GRADWIRE_APART inline void clear_bins() {
    DigitShared& shared = digit_bins();
    __syncthreads();
    for (unsigned i = threadIdx.x; i < widest_digit; i += team_threads) shared.bins[i] = 0;
    __syncthreads();
}

// Adds up the histograms of a team, in each of its blocks.
__device__ inline void join_bins(Team& team) {
    DigitShared& shared = digit_bins();
    team.counted = true;
    // Of three in turn, the one after this was last read two digits ago, by everybody.
    std::uint32_t* const bins = team.bins + team.bin_turn * widest_digit;
    team.bin_turn = (team.bin_turn + 1) % team_histograms;
    std::uint32_t* const next = team.bins + team.bin_turn * widest_digit;
    for (unsigned i = threadIdx.x; i < widest_digit; i += team_threads)
        if (shared.bins[i] != 0) atomicAdd(bins + i, shared.bins[i]);
    if (team.rank == 0)
        for (unsigned i = threadIdx.x; i < widest_digit; i += team_threads) next[i] = 0;
    team.sync();
    for (unsigned i = threadIdx.x; i < widest_digit; i += team_threads) shared.bins[i] = bins[i];
}

// Finds the digit that the rank falls into, in bins that are counted.
__device__ GRADWIRE_APART inline void find_digit(Team& team, Search& search) {
    DigitShared& shared = digit_bins();
    __syncthreads();
    if (team.size > 1) join_bins(team);
    __syncthreads();
    // Each thread has a run of bins, the first thread the highest.
    constexpr unsigned each = widest_digit / team_threads;
    const unsigned highest = widest_digit - 1 - threadIdx.x * each;
    std::uint64_t mine = 0;
    for (unsigned b = 0; b < each; ++b) mine += shared.bins[highest - b];
    const auto sums = block_scan<team_threads>(mine);
    std::uint64_t counted = sums.before, digit = 0;
    for (unsigned b = 0; b < each; ++b) {
        const std::uint32_t here = shared.bins[highest - b];
        if (counted < search.rank && counted + here >= search.rank) digit = highest - b + 1;
        counted += here;
    }
    digit = block_reduce<team_threads>(digit, Greatest{});
    digit = digit == 0 ? 0 : digit - 1;
    std::uint64_t larger = 0;
    for (unsigned b = 0; b < each; ++b)
        if (highest - b > digit) larger += shared.bins[highest - b];
    larger = block_reduce<team_threads>(larger, Sum{});
    search.inside = shared.bins[digit];
    search.rank = search.rank > larger ? search.rank - larger : 0;
    search.prefix |= static_cast<std::uint32_t>(digit) << digit_shift(search.found);
    ++search.found;
}

// Finds the next digit: `visit(count)` calls `count(bits)` for each of a thread's magnitudes. If fewer
// than the rank are counted, the digit is zero.
template <class Visit>
__device__ void next_digit(Team& team, Search& search, Visit visit) {
    DigitShared& shared = digit_bins();
    clear_bins();
    const unsigned shift = digit_shift(search.found), width = digit_width(search.found);
    const std::uint32_t mask = (1u << width) - 1, above = shift + width, prefix = search.prefix >> above;
    visit([&](std::uint32_t bits) {
        if (bits >> above == prefix) atomicAdd(&shared.bins[bits >> shift & mask], 1u);
    });
    find_digit(team, search);
}

// The `rank`-th largest of `count` magnitudes, which are at least as many; `bits(i)` gives them.
template <class Bits>
__device__ Kth kth_largest(Team& team, std::uint64_t count, std::uint64_t rank, Bits bits) {
    Search search(rank);
    while (!search.is_done())
        next_digit(team, search, [&](auto take) {
            for (std::uint64_t i = team.first(count) + threadIdx.x; i < team.last(count); i += team_threads)
                take(bits(i));
        });
    return {search.prefix, search.inside, search.rank};
}

}  // namespace gradwire
