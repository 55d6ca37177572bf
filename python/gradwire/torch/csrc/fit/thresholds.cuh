// From moments of magnitudes to a threshold: the generalized Pareto distribution of SIDCo.
//
// Abdelmoniem, Elzanaty, Alouini and Canini, "An Efficient Statistical-based Gradient Compression
// Technique for Distributed Training Systems", MLSys 2021. Scalar work on a few numbers, the same in
// every thread. A fit that fails is NaN.
#pragma once

#include "bucket/piece.h"
#include "fit/libm.cuh"

namespace gradwire {

__host__ __device__ inline bool is_finite(double x) { return fabs(x) < libm::infinity(); }

// `x` if it is a positive finite number; NaN otherwise.
__host__ __device__ inline double positive(double x) {
    return x > 0.0 && is_finite(x) ? x : libm::not_a_number();
}

__host__ __device__ inline double mean_of(const Moments& moments) {
    return positive(moments.sum / static_cast<double>(moments.count));
}

__host__ __device__ inline double variance_of(const Moments& moments, double mean) {
    const double n = static_cast<double>(moments.count);
    const double variance = positive((moments.sum_sq - n * mean * mean) / (n - 1.0));
    // Below this share of the square, the difference is rounding of the two sums.
    return variance > 1e-9 * mean * mean ? variance : libm::not_a_number();
}

__host__ __device__ inline double pareto_quantile(const Moments& moments, double share) {
    const double mean = mean_of(moments), r = mean * mean / variance_of(moments, mean);
    const double alpha = 0.5 * (1.0 - r), beta = 0.5 * mean * (1.0 + r), ln = -libm::log(share);
    if (fabs(alpha * ln) < 1e-4) return beta * ln * (1.0 + 0.5 * alpha * ln);
    return beta * libm::expm1(alpha * ln) / alpha;
}

// Rust's clamp.
__host__ __device__ inline double clamp(double x, double low, double high) {
    if (x < low) x = low;
    if (x > high) x = high;
    return x;
}

// Rust's max and min: a number beats what is none.
__host__ __device__ inline double greater(double a, double b) { return a != a ? b : b != b ? a : a < b ? b : a; }
__host__ __device__ inline double smaller(double a, double b) { return a != a ? b : b != b ? a : b < a ? b : a; }

// The threshold above which a fraction `delta` of all `n` magnitudes is expected.
__host__ __device__ GRADWIRE_APART inline double first_threshold(const Moments& moments, std::uint64_t n, double delta) {
    if (moments.count == 0) return libm::not_a_number();
    const double share = positive(delta * (static_cast<double>(n) / static_cast<double>(moments.count)));
    if (share != share) return share;
    if (share >= 1.0) return 0.0;
    const double eta = pareto_quantile(moments, share);
    return eta >= 0.0 && is_finite(eta) ? eta : libm::not_a_number();
}

// The fewest exceedances a tail is fitted to.
constexpr std::uint64_t min_tail = 8;

// The threshold that a share `rho` of the magnitudes above `location` is expected to exceed.
__host__ __device__ GRADWIRE_APART inline double tail_threshold(const Moments& moments, double location, double rho) {
    if (moments.count < min_tail || !(rho > 0.0 && rho < 1.0)) return libm::not_a_number();
    const double eta = location + pareto_quantile(moments, rho);
    return eta > location && is_finite(eta) ? eta : libm::not_a_number();
}

}  // namespace gradwire
