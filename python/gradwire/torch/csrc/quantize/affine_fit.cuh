// Where the grid of each block of `affine` lies.
//
// All arithmetic is on values times two to the power of the frame's exponent, and a grid is rounded to
// binary16 before errors are compared. The formulas are those of the core, each operation rounded.
#pragma once

#include "quantize/affine.cuh"
#include "quantize/summary.cuh"

namespace gradwire::affine {

constexpr unsigned grids = 16;              // that errors are compared on, each by a lane
constexpr unsigned error_values = 2048;     // whose squared errors are added up in float32

// How many such parts a chunk of a group has.
__host__ __device__ inline std::uint64_t error_parts(std::uint32_t size) {
    return pieces(size < chunk_values ? size : chunk_values, error_values);
}

// The nearest binary16, ties to even.
__device__ inline float near(float x) { return half::widen(half::narrow(x)); }

// The largest binary16 that is not above.
__device__ inline float down(float x) {
    constexpr float normal = 6.103515625e-05f;
    const float nearest = near(x);
    if (nearest <= x) return nearest;
    const std::uint32_t exponent = __float_as_uint(max(magnitude_of(x), normal)) & 0x7f800000;
    return __fsub_rn(nearest, __fmul_rn(__uint_as_float(exponent), 9.765625e-4f));
}

// The least binary16 that is not below.
__device__ inline float up(float x) { return -down(-x); }

// Zero, not minus zero, for what is not above it.
__device__ inline float positive(float x) { return x > 0.0f ? x : 0.0f; }

// Equal cells between two ends, read at their centres. The base is rounded down, and the step then
// reaches to the upper end.
__device__ inline Cells cut(Ends ends, float most) {
    const float cells = __fdiv_rn(1.0f, __fadd_rn(most, 1.0f)), but_half = __fdiv_rn(1.0f, __fadd_rn(most, 0.5f));
    const float range = __fsub_rn(ends.largest, ends.least);
    const float base = down(__fadd_rn(ends.least, __fmul_rn(__fmul_rn(0.5f, range), cells)));
    return {near(positive(__fmul_rn(__fsub_rn(ends.largest, base), but_half))), base};
}

// Codes from one end to the other, and not less.
__device__ inline Cells over(Ends ends, float most) {
    const float base = down(ends.least);
    return {up(__fmul_rn(__fsub_rn(ends.largest, base), __fdiv_rn(1.0f, most))), base};
}

// Symmetric, with zero the code in the middle.
__device__ inline Cells zero(Ends ends, unsigned bits) {
    const auto below = static_cast<float>(1u << (bits - 1));
    const float lower = __fmul_rn(-ends.least, __fdiv_rn(1.0f, below));
    const float upper = __fmul_rn(ends.largest, __fdiv_rn(1.0f, max(__fsub_rn(below, 1.0f), 1.0f)));
    const float step = up(positive(max(lower, upper)));
    return {step, __fmul_rn(-below, step)};
}

// Symmetric, up to a clip.
__device__ inline Cells even(float clip, float most) {
    const float step = near(__fmul_rn(__fmul_rn(2.0f, clip), __fdiv_rn(1.0f, most)));
    return {step, near(__fmul_rn(__fmul_rn(-0.5f, most), step))};
}

// A range that shrinks to both sides of its centre, the shorter the larger the number.
__device__ inline Ends shrunk(Ends ends, unsigned times) {
    const auto k = static_cast<float>(times);
    const float share = __fmul_rn(0.001f, __fmul_rn(k, __fadd_rn(12.5f, k)));
    const float less = __fmul_rn(share, __fsub_rn(ends.largest, ends.least));
    return {__fadd_rn(ends.least, less), __fsub_rn(ends.largest, less)};
}

// One of the grids that a block may have.
struct Candidate {
    Cells cells;
    bool compared;  // whether errors decide; else all candidates are the same
};

// The clip of Choi et al., MLSys 2019: `first * sqrt(E[w^2]) - second * E[|w|]`.
__device__ inline float clip_of(unsigned bits, const Summary& sums, float power) {
    double first = 0.0, second = -1.0;
    switch (bits) {
        case 2: first = 3.12, second = 2.064; break;
        case 3: first = 7.509, second = 6.892; break;
        case 4: first = 12.68, second = 12.80; break;
        case 5: first = 17.74, second = 18.64; break;
        case 6: first = 22.28, second = 24.12; break;
        case 7: first = 27.57, second = 30.39; break;
        case 8: first = 31.76, second = 35.04; break;
        default: break;
    }
    const auto count = static_cast<double>(sums.count > 0 ? sums.count : 1);
    const double square = __ddiv_rn(sums.squares, count), mean = __ddiv_rn(__dsub_rn(sums.above, sums.below), count);
    const double clip = __dsub_rn(__dmul_rn(first, __dsqrt_rn(square)), __dmul_rn(second, mean));
    return __double2float_rn(__dmul_rn(clip, static_cast<double>(power)));
}

// The candidate of a number, of a block of which this is known.
__device__ inline Candidate candidate(const Quantize& quantize, const Summary& sums, float power, unsigned number) {
    constexpr float reach = 32752.0f;  // the largest magnitude that an exponent leaves, but for the least one
    // Zeros become positive: of two that differ in sign, any could be the larger one.
    const auto scaled = [&](float end) { return __fadd_rn(min(max(__fmul_rn(end, power), -reach), reach), 0.0f); };
    const Ends ends{scaled(sums.ends.least), scaled(sums.ends.largest)};
    const unsigned bits = quantize.bits;
    const float most = highest(bits);
    switch (quantize.fit) {
        case AffineFit::zero: return {zero(ends, bits), false};
        case AffineFit::squares: return {cut(shrunk(ends, number), most), true};
        case AffineFit::sawb: {
            const float clip = clip_of(bits, sums, power), largest = positive(max(ends.largest, -ends.least));
            const bool clips = clip > 0.0f && clip < largest, compared = clips && bits >= 5;
            return {even(clips && !(compared && number > 0) ? clip : largest, most), compared};
        }
        default: return {quantize.stochastic ? over(ends, most) : cut(ends, most), false};
    }
}

// The squared errors of up to `error_values` values on a grid, in steps.
template <class Value>
__device__ float errors_of(Cells cells, unsigned bits, float power, unsigned n, Value value) {
    const float factor = inverse(cells.step), most = highest(bits);
    float sum = 0.0f;
    for (unsigned i = 0; i < n; ++i) {
        const float place = __fmul_rn(__fsub_rn(__fmul_rn(value(i), power), cells.base), factor);
        const float error = __fsub_rn(place, __fsub_rn(__fadd_rn(inside(place, most), whole), whole));
        sum = __fadd_rn(sum, __fmul_rn(error, error));
    }
    return sum;
}

// The same, of steps of this grid, added to what it was.
__device__ inline double add_errors(double error, float sum, Cells cells) {
    const double step = cells.step;
    return __dadd_rn(error, __dmul_rn(static_cast<double>(sum), __dmul_rn(step, step)));
}

// The first of the grids of the lanes with the least error. By all lanes of a warp.
__device__ inline Cells best_of(Cells cells, double error) {
    unsigned number = lane();
    if (number >= grids) error = __longlong_as_double(0x7ff0000000000000);
    for (unsigned half = warp_threads / 2; half > 0; half /= 2) {
        const double other = __shfl_xor_sync(all_lanes, error, half);
        const unsigned its = __shfl_xor_sync(all_lanes, number, half);
        if (other < error || (other == error && its < number)) error = other, number = its;
    }
    number = __shfl_sync(all_lanes, number, 0);
    return {__shfl_sync(all_lanes, cells.step, static_cast<int>(number)),
            __shfl_sync(all_lanes, cells.base, static_cast<int>(number))};
}

// What is known of a group of values that are in shared memory, in all lanes of a warp that calls.
template <class Value>
__device__ Summary summary_of(bool sawb, unsigned n, Value value) {
    Summary sums{};
    Ends ends{value(0), value(0)};
    Lane own;
    for (unsigned i = lane() % sum_lanes; i < n; i += sum_lanes) {
        ends.add({value(i), value(i)});
        if (sawb) own.add(value(i), true, true);
    }
    for (unsigned width = sum_lanes / 2; width > 0; width /= 2)
        ends.add({__shfl_down_sync(all_lanes, ends.least, width, sum_lanes),
                  __shfl_down_sync(all_lanes, ends.largest, width, sum_lanes)});
    if (sawb) sums = reduce_lanes(own, n);
    sums.above = __shfl_sync(all_lanes, sums.above, 0);
    sums.below = __shfl_sync(all_lanes, sums.below, 0);
    sums.squares = __shfl_sync(all_lanes, sums.squares, 0);
    sums.ends = {__shfl_sync(all_lanes, ends.least, 0), __shfl_sync(all_lanes, ends.largest, 0)};
    return sums;
}

// The scale of a group of values that are in shared memory. By all lanes of a warp.
template <class Value>
__device__ float fit(const Quantize& quantize, float power, unsigned n, Value value) {
    const Summary sums = summary_of(quantize.fit == AffineFit::sawb, n, value);
    const Candidate own = candidate(quantize, sums, power, min(lane(), grids - 1));
    if (!own.compared) return scale_of(own.cells);
    double error = 0.0;
    for (unsigned from = 0; from < n; from += error_values) {
        const unsigned here = min(n - from, error_values);
        const float sum = errors_of(own.cells, quantize.bits, power, here, [&](unsigned i) { return value(from + i); });
        error = add_errors(error, sum, own.cells);
    }
    return scale_of(best_of(own.cells, error));
}

}  // namespace gradwire::affine
