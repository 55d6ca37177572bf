// Logarithm, exponential and the like, to the last bit as the core computes them.
//
// The core takes these from the `libm` crate, because a platform's own would make thresholds, and so
// frames, differ between machines; CUDA's own differ again. The formulas are those of FreeBSD's msun:
//
//   Copyright (C) 1993, 2004 by Sun Microsystems, Inc. All rights reserved.
//   Developed at SunSoft and SunPro, Sun Microsystems, Inc. businesses. Permission to use, copy,
//   modify, and distribute this software is freely granted, provided that this notice is preserved.
//
// Every operation is rounded on its own: this is compiled without contraction to a fused
// multiply-add. `sqrt` is exact everywhere and needs no place here.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/launch.cuh"

namespace gradwire::libm {

__host__ __device__ inline std::uint64_t bits_of(double x) {
    std::uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

__host__ __device__ inline double of_bits(std::uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

__host__ __device__ inline std::uint32_t high(double x) {
    return static_cast<std::uint32_t>(bits_of(x) >> 32);
}

__host__ __device__ inline double with_high(double x, std::uint32_t word) {
    return of_bits(static_cast<std::uint64_t>(word) << 32 | (bits_of(x) & 0xffffffffu));
}

// Without the lower word of its bits.
__host__ __device__ inline double head(double x) {
    return of_bits(bits_of(x) & 0xffffffff00000000u);
}

__host__ __device__ inline double infinity() { return of_bits(0x7ff0000000000000u); }
__host__ __device__ inline double not_a_number() { return of_bits(0x7ff8000000000000u); }

// R of log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + R), s = f / (2 + f).
__host__ __device__ inline double log_rest(double s) {
    const double z = s * s, w = z * z;
    const double even =
        w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd =
        z * (6.666666666666735130e-01 +
             w * (2.857142874366239149e-01 +
                  w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return odd + even;
}

constexpr double ln2_high = 6.93147180369123816490e-01;
constexpr double ln2_low = 1.90821492927058770002e-10;

// A positive number as m 2^k with m in [sqrt(1/2), sqrt(2)); false, and the answer of a logarithm,
// where there is none.
__host__ __device__ inline bool normalize(double& x, int& k, double& answer) {
    std::uint32_t word = high(x);
    k = 0;
    if (word < 0x00100000 || word >> 31) {
        if (bits_of(x) << 1 == 0) {
            answer = -infinity();
            return false;
        }
        if (word >> 31) {
            answer = not_a_number();
            return false;
        }
        k = -54;
        x *= of_bits(0x4350000000000000u);
        word = high(x);
    } else if (word >= 0x7ff00000) {
        answer = x;
        return false;
    } else if (x == 1.0) {
        answer = 0.0;
        return false;
    }
    word += 0x3ff00000 - 0x3fe6a09e;
    k += static_cast<int>(word >> 20) - 0x3ff;
    x = with_high(x, (word & 0x000fffff) + 0x3fe6a09e);
    return true;
}

__host__ __device__ GRADWIRE_APART inline double log(double x) {
    int k;
    double answer;
    if (!normalize(x, k, answer)) return answer;
    const double f = x - 1.0, half = 0.5 * f * f, s = f / (2.0 + f), r = log_rest(s), n = k;
    return s * (half + r) + n * ln2_low - half + f + n * ln2_high;
}

// x 2^n, rounded once.
__host__ __device__ inline double scale(double x, int n) {
    const double most = of_bits(0x7fe0000000000000u), least = of_bits(0x0360000000000000u);
    if (n > 1023) {
        x *= most;
        n -= 1023;
        if (n > 1023) {
            x *= most;
            n = n - 1023 > 1023 ? 1023 : n - 1023;
        }
    } else if (n < -1022) {
        x *= least;
        n += 969;
        if (n < -1022) {
            x *= least;
            n = n + 969 < -1022 ? -1022 : n + 969;
        }
    }
    return x * of_bits(static_cast<std::uint64_t>(0x3ff + n) << 52);
}

// x - x^2 (1/6 - ...), of the exponential of a number near zero.
__host__ __device__ inline double exp_rest(double x, double square) {
    return x - square * (1.66666666666666019037e-01 +
                         square * (-2.77777777770155933842e-03 +
                                   square * (6.61375632143793436117e-05 +
                                             square * (-1.65339022054652515390e-06 +
                                                       square * 4.13813679705723846039e-08))));
}

constexpr double inverse_ln2 = 1.44269504088896338700e+00;

__host__ __device__ GRADWIRE_APART inline double exp(double x) {
    const bool negative = high(x) >> 31;
    const std::uint32_t word = high(x) & 0x7fffffff;
    if (word >= 0x4086232b) {
        if (x != x) return x;
        if (x > 709.782712893383973096) return x * of_bits(0x7fe0000000000000u);
        if (x < -745.13321910194110842) return 0.0;
    }
    double upper, lower;
    int k = 0;
    if (word > 0x3fd62e42) {
        k = word >= 0x3ff0a2b2 ? static_cast<int>(inverse_ln2 * x + (negative ? -0.5 : 0.5))
                               : 1 - 2 * negative;
        upper = x - k * ln2_high;
        lower = k * ln2_low;
        x = upper - lower;
    } else if (word > 0x3e300000) {
        upper = x;
        lower = 0.0;
    } else {
        return 1.0 + x;
    }
    const double c = exp_rest(x, x * x);
    const double y = 1.0 + (x * c / (2.0 - c) - lower + upper);
    return k == 0 ? y : scale(y, k);
}

__host__ __device__ GRADWIRE_APART inline double expm1(double x) {
    const bool negative = high(x) >> 31;
    const std::uint32_t word = high(x) & 0x7fffffff;
    if (word >= 0x4043687a) {
        if (x != x) return x;
        if (negative) return -1.0;
        if (x > 7.09782712893383973096e+02) return x * of_bits(0x7fe0000000000000u);
    }
    int k = 0;
    double c = 0.0;
    if (word > 0x3fd62e42) {
        double upper, lower;
        if (word < 0x3ff0a2b2) {
            k = negative ? -1 : 1;
            upper = negative ? x + ln2_high : x - ln2_high;
            lower = negative ? -ln2_low : ln2_low;
        } else {
            k = static_cast<int>(inverse_ln2 * x + (negative ? -0.5 : 0.5));
            upper = x - k * ln2_high;
            lower = k * ln2_low;
        }
        x = upper - lower;
        c = (upper - x) - lower;
    } else if (word < 0x3c900000) {
        return x;
    }
    const double half = 0.5 * x, square = x * half;
    const double r =
        1.0 +
        square * (-3.33333333333331316428e-02 +
                  square * (1.58730158725481460165e-03 +
                            square * (-7.93650757867487942473e-05 +
                                      square * (4.00821782732936239552e-06 +
                                                square * -2.01099218183624371326e-07))));
    double t = 3.0 - r * half;
    double e = square * ((r - t) / (6.0 - x * t));
    if (k == 0) return x - (x * e - square);
    e = x * (e - c) - c;
    e -= square;
    if (k == -1) return 0.5 * (x - e) - 0.5;
    if (k == 1) return x < -0.25 ? -2.0 * (e - (x + 0.5)) : 1.0 + 2.0 * (x - e);
    const double power = of_bits(static_cast<std::uint64_t>(0x3ff + k) << 52);
    if (k < 0 || k > 56) {
        double y = x - e + 1.0;
        y = k == 1024 ? y * 2.0 * of_bits(0x7fe0000000000000u) : y * power;
        return y - 1.0;
    }
    const double inverse = of_bits(static_cast<std::uint64_t>(0x3ff - k) << 52);
    return k < 20 ? (x - e + (1.0 - inverse)) * power : (x - (e + inverse) + 1.0) * power;
}

// x^y for x >= 0 (or not a number) and a finite y: no fit raises anything else.
__host__ __device__ GRADWIRE_APART inline double pow(double x, double y) {
    const std::uint32_t x_low = static_cast<std::uint32_t>(bits_of(x));
    const std::uint32_t y_low = static_cast<std::uint32_t>(bits_of(y));
    const std::int32_t y_high = static_cast<std::int32_t>(high(y));
    std::int32_t word = static_cast<std::int32_t>(high(x) & 0x7fffffff);
    const std::int32_t y_word = y_high & 0x7fffffff;
    if ((static_cast<std::uint32_t>(y_word) | y_low) == 0 || x == 1.0) return 1.0;
    if (x != x || y != y) return x + y;
    if (y_low == 0) {
        if (y_word == 0x3ff00000) return y_high >= 0 ? x : 1.0 / x;
        if (y_high == 0x40000000) return x * x;
        if (y_high == 0x3fe00000) return sqrt(x);
    }
    if (x_low == 0 && (word == 0x7ff00000 || word == 0)) return y_high < 0 ? 1.0 / x : x;
    double t1, t2;
    if (y_word > 0x41e00000) {
        if (word < 0x3fefffff) return y_high < 0 ? infinity() : 0.0;
        if (word > 0x3ff00000) return y_high > 0 ? infinity() : 0.0;
        if (y_word > 0x43f00000)
            return (word <= 0x3fefffff) == (y_high < 0) ? infinity() : 0.0;
        const double t = x - 1.0;
        const double w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25));
        const double u = 1.44269502162933349609e+00 * t;
        const double v = t * 1.92596299112661746887e-08 - w * inverse_ln2;
        t1 = head(u + v);
        t2 = v - (t1 - u);
    } else {
        int n = 0;
        if (word < 0x00100000) {
            x *= 9007199254740992.0;
            n -= 53;
            word = static_cast<std::int32_t>(high(x));
        }
        n += (word >> 20) - 0x3ff;
        const std::int32_t fraction = word & 0x000fffff;
        word = fraction | 0x3ff00000;
        int k = 0;
        if (fraction > 0x3988e) {
            if (fraction < 0xbb67a) {
                k = 1;
            } else {
                n += 1;
                word -= 0x00100000;
            }
        }
        x = with_high(x, static_cast<std::uint32_t>(word));
        const double point = k ? 1.5 : 1.0;
        double u = x - point, v = 1.0 / (x + point);
        const double ss = u * v, s_high = head(ss);
        double t_high = with_high(0.0, (static_cast<std::uint32_t>(word) >> 1 | 0x20000000) +
                                           0x00080000 + (static_cast<std::uint32_t>(k) << 18));
        double t_low = x - (t_high - point);
        const double s_low = v * ((u - s_high * t_high) - s_high * t_low);
        double square = ss * ss;
        double r = square * square *
                   (5.99999999999994648725e-01 +
                    square * (4.28571428578550184252e-01 +
                              square * (3.33333329818377432918e-01 +
                                        square * (2.72728123808534006489e-01 +
                                                  square * (2.30660745775561754067e-01 +
                                                            square * 2.06975017800338417784e-01)))));
        r += s_low * (s_high + ss);
        square = s_high * s_high;
        t_high = head(3.0 + square + r);
        t_low = r - ((t_high - 3.0) - square);
        u = s_high * t_high;
        v = s_low * t_high + t_low * ss;
        const double p_high = head(u + v), p_low = v - (p_high - u);
        const double z_high = 9.61796700954437255859e-01 * p_high;
        const double z_low = -7.02846165095275826516e-09 * p_high + p_low * 9.61796693925975554329e-01 +
                             (k ? 1.35003920212974897128e-08 : 0.0);
        const double offset = k ? 5.84962487220764160156e-01 : 0.0, t = n;
        t1 = head(((z_high + z_low) + offset) + t);
        t2 = z_low - (((t1 - t) - offset) - z_high);
    }
    const double y1 = head(y);
    double p_low = (y - y1) * t1 + y * t2, p_high = y1 * t1;
    double z = p_low + p_high;
    std::int32_t j = static_cast<std::int32_t>(high(z));
    const std::int32_t z_low = static_cast<std::int32_t>(bits_of(z));
    if (j >= 0x40900000) {
        if (((j - 0x40900000) | z_low) != 0 || p_low + 8.0085662595372944372e-017 > z - p_high)
            return infinity();
    } else if ((j & 0x7fffffff) >= 0x4090cc00) {
        const std::uint32_t beyond = static_cast<std::uint32_t>(j) - 0xc090cc00u;
        if ((beyond | static_cast<std::uint32_t>(z_low)) != 0 || p_low <= z - p_high) return 0.0;
    }
    const std::int32_t i = j & 0x7fffffff;
    int k = (i >> 20) - 0x3ff, n = 0;
    if (i > 0x3fe00000) {
        n = j + (0x00100000 >> (k + 1));
        k = ((n & 0x7fffffff) >> 20) - 0x3ff;
        p_high -= with_high(0.0, static_cast<std::uint32_t>(n & ~(0x000fffff >> k)));
        n = ((n & 0x000fffff) | 0x00100000) >> (20 - k);
        if (j < 0) n = -n;
    }
    const double t = head(p_low + p_high);
    const double u = t * 6.93147182464599609375e-01;
    const double v = (p_low - (t - p_high)) * 6.93147180559945286227e-01 + t * -1.90465429995776804525e-09;
    z = u + v;
    const double w = v - (z - u), c = exp_rest(z, z * z);
    const double r = (z * c) / (c - 2.0) - (w + z * w);
    z = 1.0 - (r - z);
    j = static_cast<std::int32_t>(high(z)) + static_cast<std::int32_t>(static_cast<std::uint32_t>(n) << 20);
    return j >> 20 <= 0 ? scale(z, n) : with_high(z, static_cast<std::uint32_t>(j));
}

}  // namespace gradwire::libm
