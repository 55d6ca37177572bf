//! Quantiles of the normal distribution.

use std::f64::consts::{PI, SQRT_2};

/// The `z` with `P(|X| > z) = share` for a standard normal `X`; `share` in (0, 1].
///
/// A rational guess of the tail (Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964,
/// 26.2.23; off by less than 4.5e-4), then Newton's steps on the complementary error function. Of the
/// tail, not of one minus it: that would lose every digit of a small share.
pub fn two_sided(share: f64) -> f64 {
    if share >= 1.0 {
        return 0.0;
    }
    let t = libm::sqrt(-2.0 * libm::log(0.5 * share));
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut z = (t - above / below).max(0.0);
    for _ in 0..3 {
        let density = 2.0 * libm::exp(-0.5 * z * z) / libm::sqrt(2.0 * PI);
        // Far out the tail falls like the density: relative to it the step stays small.
        let step = (libm::erfc(z / SQRT_2) - share) / density;
        if !step.is_finite() {
            break;
        }
        z = (z + step).max(0.0);
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_inverse_of_the_tail() {
        for share in [1.0, 0.999, 0.5, 0.317_310_507_862_914, 0.1, 1e-2, 1e-3, 1e-6, 1e-9, 1e-12] {
            let back = libm::erfc(two_sided(share) / SQRT_2);
            assert!((back / share - 1.0).abs() < 1e-9, "{share} {back}");
        }
        // From tables.
        assert!((two_sided(0.05) - 1.959_963_984_540_054).abs() < 1e-12);
        assert!((two_sided(0.001) - 3.290_526_731_491_926).abs() < 1e-12);
        assert!(two_sided(f64::MIN_POSITIVE).is_finite());
    }
}
