// How the scales of a group follow from what was summed up over it.
#pragma once

#include "quantize/each.cuh"
#include "quantize/groups.cuh"
#include "quantize/summary.cuh"

namespace gradwire {

__host__ __device__ inline Basis basis_of(const Quantize& quantize) {
    switch (quantize.kind) {
        case Quantizer::float16_scaled: return Basis::peak;
        case Quantizer::float8_e5m2:
        case Quantizer::float8_e4m3: return quantize.block ? Basis::peak : Basis::none;
        case Quantizer::uniform: return quantize.norm == Norm::largest ? Basis::peak : Basis::squares;
        case Quantizer::sign_scale:
            return quantize.magnitude == Magnitude::root_mean_square ? Basis::squares : Basis::sides;
        case Quantizer::two_means: return Basis::sides;
        case Quantizer::ternary: return quantize.clip > 0 ? Basis::sums : Basis::peak;
        case Quantizer::codebook: return Basis::values;
        case Quantizer::exponent: return Basis::peak;
        default: return Basis::none;
    }
}

namespace fit {

__device__ inline double over(double sum, std::uint64_t count) {
    return __ddiv_rn(sum, static_cast<double>(count > 0 ? count : 1));
}

// The largest magnitude of values clipped at so many standard deviations. Values that are all equal
// have no deviation to speak of, and are not clipped.
__device__ inline float clipped(const Summary& sums, float clip) {
    constexpr double nothing = 1e-12;  // of the mean square: what rounding leaves of it
    const double mean = over(__dadd_rn(sums.above, sums.below), sums.count), square = over(sums.squares, sums.count);
    const double variance = __dsub_rn(square, __dmul_rn(mean, mean));
    const float peak = __uint_as_float(sums.peak);
    if (!(variance > __dmul_rn(nothing, square))) return peak;
    return min(peak, __double2float_rn(__dmul_rn(static_cast<double>(clip), __dsqrt_rn(variance))));
}

}  // namespace fit

// Up to two scales of a group; `told` is the magnitude according to the sparsifier, or NaN.
__device__ inline void fit_scales(const Quantize& quantize, const Summary& sums, float told, float* scales) {
    constexpr float largest = 3.40282346638528859811704183484516925e+38f;
    const float peak = __uint_as_float(sums.peak);
    switch (quantize.kind) {
        case Quantizer::float8_e5m2: *scales = float8::scale_for<E5M2>(peak); return;
        case Quantizer::float8_e4m3: *scales = float8::scale_for<E4M3>(peak); return;
        case Quantizer::exponent: *scales = Exponent::scale_for(peak); return;
        case Quantizer::uniform:
            // Never less than the largest magnitude, never more than a float32 holds.
            *scales = quantize.norm == Norm::largest
                          ? peak
                          : min(max(__double2float_rn(__dsqrt_rn(sums.squares)), peak), largest);
            return;
        case Quantizer::sign_scale:
            if (quantize.magnitude == Magnitude::root_mean_square)
                *scales = __double2float_rn(__dsqrt_rn(fit::over(sums.squares, sums.count)));
            else if (quantize.magnitude == Magnitude::told && told == told)
                *scales = told;
            else
                *scales = __double2float_rn(fit::over(__dsub_rn(sums.above, sums.below), sums.count));
            return;
        case Quantizer::two_means:
            scales[0] = __double2float_rn(fit::over(sums.below, sums.negatives));
            scales[1] = __double2float_rn(fit::over(sums.above, sums.count - sums.negatives));
            return;
        case Quantizer::ternary: *scales = quantize.clip > 0 ? fit::clipped(sums, quantize.clip) : peak; return;
        default: return;
    }
}

}  // namespace gradwire
