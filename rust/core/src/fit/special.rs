//! Special functions, the same on every platform: only `+ - * /`, `sqrt` and the `libm` crate.

/// The logarithm of a regularised upper incomplete gamma function, and its slope.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    /// `ln Q(a, x)`.
    pub(super) value: f64,
    /// `-d ln Q / d ln x`, that is `x pdf(x) / Q(x)`.
    pub(super) hazard: f64,
}

/// `ln Q(a, x)` for `a > 0`, `x > 0`: the fraction of a gamma distribution of shape `a` above `x`.
///
/// Lower series below `a + 1`, where it converges fast and `1 - P` loses nothing that matters;
/// continued fraction above, which keeps its relative accuracy however small the tail.
pub(super) fn ln_gamma_tail(a: f64, x: f64) -> Tail {
    // ln (x pdf(x)), common to both.
    let front = a * libm::log(x) - x - libm::lgamma(a);
    let value = if x < a + 1.0 {
        libm::log1p(-libm::exp(front) * lower_series(a, x))
    } else {
        front + libm::log(upper_fraction(a, x))
    };
    Tail { value, hazard: libm::exp(front - value) }
}

/// `sum_i x^i / (a (a+1) .. (a+i))`.
fn lower_series(a: f64, x: f64) -> f64 {
    let mut term = 1.0 / a;
    let mut sum = term;
    let mut below = a;
    // Terms shrink after i > x - a; sqrt(a) of them matter, and 1 - P = 0 is answered by infinity.
    for _ in 0..MAX_TERMS {
        below += 1.0;
        term *= x / below;
        sum += term;
        if term < sum * (0.25 * f64::EPSILON) {
            break;
        }
    }
    sum
}

/// `Gamma(a, x) e^x x^-a` by Legendre's continued fraction, evaluated by Lentz's method.
fn upper_fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / away(b);
    let mut h = d;
    for i in 1..MAX_TERMS {
        let i = i as f64;
        let an = -i * (i - a);
        b += 2.0;
        d = 1.0 / away(an * d + b);
        c = away(b + an / c);
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    h
}

/// Far above what shapes up to 1e6 need (some 10 sqrt(a)); a bound, so that no input loops long.
const MAX_TERMS: u32 = 20_000;

/// `d/dx ln Gamma(x)` for `x > 0`: recurrence up to 10, then the asymptotic series.
pub(super) fn digamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = y
        * (1.0 / 12.0
            - y * (1.0 / 120.0
                - y * (1.0 / 252.0 - y * (1.0 / 240.0 - y * (1.0 / 132.0 - y * 691.0 / 32760.0)))));
    sum + libm::log(x) - 0.5 / x - series
}

/// The derivative of [`digamma`], likewise.
pub(super) fn trigamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = y
        * (1.0 / 6.0
            - y * (1.0 / 30.0
                - y * (1.0 / 42.0 - y * (1.0 / 30.0 - y * (5.0 / 66.0 - y * 691.0 / 2730.0)))));
    sum + (1.0 + 0.5 / x + series) / x
}

#[cfg(test)]
mod tests {
    use super::{digamma, ln_gamma_tail, trigamma};

    #[test]
    fn incomplete_gamma_agrees_with_statrs() {
        for a in [1e-3, 0.01, 0.06, 0.2, 0.5, 0.9, 1.0, 1.1, 2.0, 5.5, 10.0, 40.0, 99.0] {
            for q in [1e-9, 1e-6, 1e-3, 0.02, 0.1, 0.3, 0.7, 0.95, 1.0, 1.05, 1.5, 2.0, 4.0] {
                for x in [q * a, q, q * (a + 1.0), 8.0 * q] {
                    let want = statrs::function::gamma::gamma_ur(a, x);
                    let got = libm::exp(ln_gamma_tail(a, x).value);
                    assert!((got - want).abs() < 1e-11 * want + 1e-14, "Q({a}, {x}): {got} {want}");
                }
            }
        }
    }

    #[test]
    fn whole_shapes_have_a_closed_form_far_into_the_tail() {
        // Q(n, x) = e^-x sum_{i<n} x^i / i!, by hand, where the values themselves underflow.
        for n in [1_u32, 2, 5, 12] {
            for x in [0.1, 1.0, 3.0, 20.0, 300.0, 2000.0] {
                let (mut term, mut sum) = (1.0, 1.0);
                for i in 1..n {
                    term *= x / i as f64;
                    sum += term;
                }
                let want = libm::log(sum) - x;
                let got = ln_gamma_tail(n as f64, x).value;
                assert!((got - want).abs() < 1e-12 * want.abs() + 1e-13, "{n} {x}: {got} {want}");
            }
        }
    }

    #[test]
    fn hazard_is_the_slope() {
        for a in [0.05, 0.5, 1.0, 3.0, 30.0] {
            for x in [0.01, 0.3, 1.0, 2.5, 10.0, 60.0] {
                let h = 1e-5;
                let up = ln_gamma_tail(a, x * libm::exp(h)).value;
                let down = ln_gamma_tail(a, x * libm::exp(-h)).value;
                let slope = (down - up) / (2.0 * h);
                let hazard = ln_gamma_tail(a, x).hazard;
                assert!((slope - hazard).abs() < 1e-6 * hazard + 1e-9, "{a} {x}: {slope} {hazard}");
            }
        }
    }

    #[test]
    fn digamma_and_trigamma() {
        for x in [1e-3, 0.02, 0.3, 1.0, 1.5, 4.0, 9.99, 10.0, 55.0, 1e5] {
            let want = statrs::function::gamma::digamma(x);
            assert!((digamma(x) - want).abs() < 1e-11 * want.abs().max(1.0), "{x}");
            let h = 1e-4 * x;
            let slope = (digamma(x + h) - digamma(x - h)) / (2.0 * h);
            assert!((trigamma(x) / slope - 1.0).abs() < 1e-6, "{x}: {} {slope}", trigamma(x));
        }
        let sixth_of_pi_squared = std::f64::consts::PI * std::f64::consts::PI / 6.0;
        assert!((trigamma(1.0) - sixth_of_pi_squared).abs() < 1e-14);
    }
}
