// Special functions, to the last bit as the core computes them: only + - * /, sqrt and libm.cuh.
#pragma once

#include "fit/libm.cuh"

namespace gradwire {

constexpr double double_epsilon = 2.220446049250313e-16;

namespace libm {

// ln Gamma(x) for x >= 0. Formulas and notice as in libm.cuh.
__host__ __device__ GRADWIRE_APART inline double lgamma(double x) {
    const std::uint32_t word = high(x) & 0x7fffffff;
    if (word >= 0x7ff00000) return x * x;
    if (word < (0x3ffu - 70) << 20) return -log(x);
    if (x == 1.0 || x == 2.0) return 0.0;
    if (word < 0x40000000) {
        constexpr double turn = 1.46163214496836224576e+00;
        double r = 0.0, y;
        int part;
        if (word <= 0x3feccccc) {
            r = -log(x);
            part = word >= 0x3fe76944 ? 0 : word >= 0x3fcda661 ? 1 : 2;
            y = part == 0 ? 1.0 - x : part == 1 ? x - (turn - 1.0) : x;
        } else {
            part = word >= 0x3ffbb4c3 ? 0 : word >= 0x3ff3b4c4 ? 1 : 2;
            y = part == 0 ? 2.0 - x : part == 1 ? x - turn : x - 1.0;
        }
        if (part == 0) {
            const double z = y * y;
            const double p1 =
                7.72156649015328655494e-02 +
                z * (6.73523010531292681824e-02 +
                     z * (7.38555086081402883957e-03 +
                          z * (1.19270763183362067845e-03 +
                               z * (2.20862790713908385557e-04 + z * 2.52144565451257326939e-05))));
            const double p2 =
                z * (3.22467033424113591611e-01 +
                     z * (2.05808084325167332806e-02 +
                          z * (2.89051383673415629091e-03 +
                               z * (5.10069792153511336608e-04 +
                                    z * (1.08011567247583939954e-04 + z * 4.48640949618915160150e-05)))));
            const double p = y * p1 + p2;
            return r + (p - 0.5 * y);
        }
        if (part == 1) {
            const double z = y * y, w = z * y;
            const double p1 =
                4.83836122723810047042e-01 +
                w * (-3.27885410759859649565e-02 +
                     w * (6.10053870246291332635e-03 +
                          w * (-1.40346469989232843813e-03 + w * 3.15632070903625950361e-04)));
            const double p2 =
                -1.47587722994593911752e-01 +
                w * (1.79706750811820387126e-02 +
                     w * (-3.68452016781138256760e-03 +
                          w * (8.81081882437654011382e-04 + w * -3.12754168375120860518e-04)));
            const double p3 =
                6.46249402391333854778e-02 +
                w * (-1.03142241298341437450e-02 +
                     w * (2.25964780900612472250e-03 +
                          w * (-5.38595305356740546715e-04 + w * 3.35529192635519073543e-04)));
            const double p = z * p1 - (-3.63867699703950536541e-18 - w * (p2 + y * p3));
            return r + (-1.21486290535849611461e-01 + p);
        }
        const double p1 =
            y * (-7.72156649015328655494e-02 +
                 y * (6.32827064025093366517e-01 +
                      y * (1.45492250137234768737e+00 +
                           y * (9.77717527963372745603e-01 +
                                y * (2.28963728064692451092e-01 + y * 1.33810918536787660377e-02)))));
        const double p2 =
            1.0 + y * (2.45597793713041134822e+00 +
                       y * (2.12848976379893395361e+00 +
                            y * (7.69285150456672783825e-01 +
                                 y * (1.04222645593369134254e-01 + y * 3.21709242282423911810e-03))));
        return r + (-0.5 * y + p1 / p2);
    }
    if (word < 0x40200000) {
        const int i = static_cast<int>(x);
        const double y = x - i;
        const double p =
            y * (-7.72156649015328655494e-02 +
                 y * (2.14982415960608852501e-01 +
                      y * (3.25778796408930981787e-01 +
                           y * (1.46350472652464452805e-01 +
                                y * (2.66422703033638609560e-02 +
                                     y * (1.84028451407337715652e-03 + y * 3.19475326584100867617e-05))))));
        const double q =
            1.0 + y * (1.39200533467621045958e+00 +
                       y * (7.21935547567138069525e-01 +
                            y * (1.71933865632803078993e-01 +
                                 y * (1.86459191715652901344e-02 +
                                      y * (7.77942496381893596434e-04 + y * 7.32668430744625636189e-06)))));
        const double r = 0.5 * y + p / q;
        if (i < 3) return r;
        double z = 1.0;
        for (int above = i - 1; above >= 2; --above) z *= y + above;
        return r + log(z);
    }
    if (word < 0x43900000) {
        const double t = log(x), z = 1.0 / x, y = z * z;
        const double w =
            4.18938533204672725052e-01 +
            z * (8.33333333333329678849e-02 +
                 y * (-2.77777777728775536470e-03 +
                      y * (7.93650558643019558500e-04 +
                           y * (-5.95187557450339963135e-04 +
                                y * (8.36339918996282139126e-04 + y * -1.63092934096575273989e-03)))));
        return (x - 0.5) * (t - 1.0) + w;
    }
    return x * (log(x) - 1.0);
}

}  // namespace libm

// The logarithm of a regularised upper incomplete gamma function, and its slope.
struct GammaTail {
    double value;   // ln Q(a, x)
    double hazard;  // -d ln Q / d ln x
};

// Far above what shapes up to 1e6 need: a bound, so that no input loops long.
constexpr std::uint32_t most_terms = 20000;

__host__ __device__ inline double gamma_series(double a, double x) {
    double term = 1.0 / a, sum = term, below = a;
    for (std::uint32_t i = 0; i < most_terms; ++i) {
        below += 1.0;
        term *= x / below;
        sum += term;
        if (term < sum * (0.25 * double_epsilon)) break;
    }
    return sum;
}

// Legendre's continued fraction, by Lentz's method.
__host__ __device__ inline double gamma_fraction(double a, double x) {
    constexpr double tiny = 1e-300;
    auto away = [](double v) { return fabs(v) < tiny ? tiny : v; };
    double b = x + 1.0 - a, c = 1.0 / tiny, d = 1.0 / away(b), h = d;
    for (std::uint32_t n = 1; n < most_terms; ++n) {
        const double i = n, an = -i * (i - a);
        b += 2.0;
        d = 1.0 / away(an * d + b);
        c = away(b + an / c);
        const double step = d * c;
        h *= step;
        if (fabs(step - 1.0) < double_epsilon) break;
    }
    return h;
}

__host__ __device__ GRADWIRE_APART inline GammaTail ln_gamma_tail(double a, double x) {
    const double front = a * libm::log(x) - x - libm::lgamma(a);
    const double value = x < a + 1.0 ? libm::log1p(-libm::exp(front) * gamma_series(a, x))
                                     : front + libm::log(gamma_fraction(a, x));
    return {value, libm::exp(front - value)};
}

__host__ __device__ inline double digamma(double x) {
    double sum = 0.0;
    while (x < 10.0) {
        sum -= 1.0 / x;
        x += 1.0;
    }
    const double y = 1.0 / (x * x);
    const double series =
        y * (1.0 / 12.0 -
             y * (1.0 / 120.0 -
                  y * (1.0 / 252.0 - y * (1.0 / 240.0 - y * (1.0 / 132.0 - y * 691.0 / 32760.0)))));
    return sum + libm::log(x) - 0.5 / x - series;
}

__host__ __device__ inline double trigamma(double x) {
    double sum = 0.0;
    while (x < 10.0) {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    const double y = 1.0 / (x * x);
    const double series =
        y * (1.0 / 6.0 -
             y * (1.0 / 30.0 -
                  y * (1.0 / 42.0 - y * (1.0 / 30.0 - y * (5.0 / 66.0 - y * 691.0 / 2730.0)))));
    return sum + (1.0 + 0.5 / x + series) / x;
}

}  // namespace gradwire
