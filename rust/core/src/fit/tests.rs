//! Samples of exact laws, and inputs that no law fits.

use proptest::prelude::*;

use super::Distribution::{Exponential, Gamma, GeneralizedPareto};
use super::{Distribution, Moments, first_threshold, tail_threshold};
use crate::reference::sidco::moments;

const ALL: [Distribution; 3] = [Exponential, Gamma, GeneralizedPareto];

/// Uniform numbers in (0, 1): splitmix64.
struct Uniform(u64);

impl Uniform {
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 * 2.0_f64.powi(-53) + 2.0_f64.powi(-54)
    }

    fn exponential(&mut self) -> f64 {
        -libm::log(self.draw())
    }

    /// A standard normal (Box-Muller, one of the pair).
    fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * libm::cos(std::f64::consts::TAU * self.draw())
    }

    fn pareto(&mut self, alpha: f64) -> f64 {
        libm::expm1(alpha * self.exponential()) / alpha
    }
}

fn sample(n: usize, mut one: impl FnMut(&mut Uniform) -> f64) -> Vec<f64> {
    let mut uniform = Uniform(17);
    (0..n).map(|_| one(&mut uniform)).collect()
}

/// Achieved over target share.
fn achieved(values: &[f64], eta: f64, delta: f64) -> f64 {
    let above = values.iter().filter(|&&a| a > eta).count();
    above as f64 / (delta * values.len() as f64)
}

fn first(dist: Distribution, values: &[f64], delta: f64) -> Option<f64> {
    first_threshold(dist, &moments(values), values.len() as u64, delta)
}

#[test]
fn the_matching_law_gives_the_share() {
    let check_down_to = |smallest, dist, name: &str, values: &[f64]| {
        for delta in [0.25, 0.1, 0.01, 0.001].into_iter().filter(|&delta| delta >= smallest) {
            let ratio = achieved(values, first(dist, values, delta).unwrap(), delta);
            assert!((0.97..=1.03).contains(&ratio), "{dist:?} on {name} at {delta}: {ratio}");
        }
    };
    let check = |dist, name: &str, values: &[f64]| check_down_to(0.001, dist, name, values);
    let n = 4_000_000;
    let laplace = sample(n, Uniform::exponential);
    for dist in ALL {
        check(dist, "exponential", &laplace);
    }
    // Half the square of a normal has shape 1/2; shapes add up with their variables.
    let square = |u: &mut Uniform| 0.5 * u.normal().powi(2);
    check(Gamma, "gamma 0.5", &sample(n, square));
    check(Gamma, "gamma 2.5", &sample(n, |u| square(u) + u.exponential() + u.exponential()));
    check(GeneralizedPareto, "GP 0.1", &sample(n, |u| u.pareto(0.1)));
    check(GeneralizedPareto, "GP -0.1", &sample(n, |u| u.pareto(-0.1)));
    // Near the end of a bounded law, the quantile is as sharp as the estimate of that end.
    check_down_to(0.01, GeneralizedPareto, "GP -0.5", &sample(n, |u| u.pareto(-0.5)));
    check_down_to(0.1, GeneralizedPareto, "uniform", &sample(n, Uniform::draw));
}

#[test]
fn the_tail_of_a_matching_law_matches() {
    // A tail of the generalized Pareto law is one again, of the same shape.
    for (dist, alpha) in
        [(Exponential, 1e-9), (Gamma, 1e-9), (GeneralizedPareto, 0.15), (GeneralizedPareto, -0.5)]
    {
        let mut values = sample(4_000_000, |u| u.pareto(alpha));
        let location = first_threshold(dist, &moments(&values), 4_000_000, 0.25).unwrap();
        values.retain(|&a| a > location);
        let excess: Vec<f64> = values.iter().map(|a| a - location).collect();
        for rho in [0.5, 0.1, 0.01] {
            let eta = tail_threshold(dist, &moments(&excess), location, rho).unwrap();
            let ratio = achieved(&values, eta, rho);
            assert!((0.97..=1.03).contains(&ratio), "{dist:?} {alpha} at {rho}: {ratio}");
        }
    }
}

#[test]
fn zeros_do_not_disturb_the_fit() {
    let laplace = sample(2_000_000, Uniform::exponential);
    let mut half = laplace.clone();
    half.extend(vec![0.0; 2_000_000]);
    for dist in ALL {
        for delta in [0.1, 0.01, 0.001] {
            let eta = first(dist, &half, delta).unwrap();
            // Twice the share of half the entries.
            assert_eq!(Some(eta), first(dist, &laplace, 2.0 * delta));
            assert!((0.97..=1.03).contains(&achieved(&half, eta, delta)));
        }
        // All non-zeros, and no more than they are.
        for delta in [0.5, 0.7, 1.0] {
            assert_eq!(first(dist, &half, delta), Some(0.0));
        }
    }
}

#[test]
fn thresholds_scale_with_the_values() {
    let values = sample(100_000, |u| u.pareto(0.1));
    for dist in ALL {
        for delta in [0.25, 0.01, 1e-4] {
            let eta = first(dist, &values, delta).unwrap();
            let tail = tail_threshold(dist, &moments(&values), 1.0, delta).unwrap() - 1.0;
            for scale in [1e-20, 1e20] {
                let scaled: Vec<f64> = values.iter().map(|a| a * scale).collect();
                let got = first(dist, &scaled, delta).unwrap() / scale;
                assert!((got / eta - 1.0).abs() < 1e-9, "{dist:?} {delta} {scale}: {got} {eta}");
                let got = tail_threshold(dist, &moments(&scaled), scale, delta).unwrap() / scale;
                assert!((got - 1.0 - tail).abs() < 1e-9 * tail, "{dist:?} {delta} {scale}: {got}");
            }
        }
    }
}

#[test]
fn what_cannot_be_fitted_is_refused() {
    for dist in ALL {
        // Nothing there, and nothing but zeros.
        assert_eq!(first(dist, &[], 0.1), None);
        assert_eq!(first(dist, &[0.0; 50], 0.1), None);
        // Shares that are none; all of it is the one threshold that needs no fit.
        for delta in [0.0, -1.0, f64::NAN] {
            assert_eq!(first(dist, &[1.0, 2.0, 3.0], delta), None);
        }
        assert_eq!(first(dist, &[1.0, 2.0, 3.0], 1.0), Some(0.0));
    }
    // No spread, at any scale: only the exponential law has a threshold for it.
    for value in [1e-45, 1.0, f64::from(f32::MAX)] {
        for n in [1, 2, 1000] {
            for dist in [Gamma, GeneralizedPareto] {
                assert_eq!(first(dist, &vec![value; n], 0.1), None, "{dist:?} {value} {n}");
            }
            assert!(first(Exponential, &vec![value; n], 0.1).unwrap() > value);
        }
    }
}

#[test]
fn a_tail_threshold_is_higher_or_none() {
    let many = sample(1000, Uniform::exponential);
    let spread = moments(&many);
    for dist in ALL {
        for rho in [1.0, 1.41, 0.0, -0.1, f64::NAN] {
            assert_eq!(tail_threshold(dist, &spread, 1.0, rho), None, "{dist:?} {rho}");
        }
        // Too few, down to none.
        for n in 0..super::MIN_TAIL as usize {
            assert_eq!(tail_threshold(dist, &moments(&many[..n]), 1.0, 0.1), None);
        }
        // An excess that the location swallows, and locations that are no numbers.
        for location in [1e30, f64::INFINITY, f64::NAN] {
            assert_eq!(tail_threshold(dist, &spread, location, 0.1), None);
        }
        assert!(tail_threshold(dist, &spread, 1.0, 1.0 - 1e-12).is_none_or(|eta| eta > 1.0));
    }
    let equal = moments(&[2.0; 100]);
    assert_eq!(tail_threshold(GeneralizedPareto, &equal, 1.0, 0.1), None);
    assert_eq!(tail_threshold(Gamma, &equal, 1.0, 0.1), None);
}

#[test]
fn moments_that_are_no_numbers_give_no_threshold() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        let good =
            Moments { count: 100, zeros: 0, sum: 100.0, sum_sq: 200.0, sum_ln: -57.0, signed: 0.0 };
        assert!(ALL.iter().all(|&dist| first_threshold(dist, &good, 100, 0.1).is_some()));
        for m in
            [Moments { sum: bad, ..good }, Moments { sum: bad, sum_sq: bad, sum_ln: bad, ..good }]
        {
            for dist in ALL {
                assert_eq!(first_threshold(dist, &m, 100, 0.1), None, "{dist:?} {m:?}");
                assert_eq!(tail_threshold(dist, &m, 1.0, 0.1), None, "{dist:?} {m:?}");
            }
        }
    }
}

/// Any double at all, those of everyday sizes as often as the others.
fn any_double() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), -1e3..1e3_f64, Just(0.0)]
}

proptest! {
    #[test]
    fn whatever_the_moments_a_threshold_is_a_threshold_or_none(
        count in prop_oneof![0..50_u64, any::<u64>()],
        more in 0..1_000_000_u64,
        sums in [any_double(), any_double(), any_double()],
        location in any_double(),
        share in prop_oneof![0.0..1.0_f64, any_double()],
    ) {
        let [sum, sum_sq, sum_ln] = sums;
        let m = Moments { count, zeros: more, sum, sum_sq, sum_ln, signed: 0.0 };
        for dist in ALL {
            let first = first_threshold(dist, &m, count.saturating_add(more), share);
            prop_assert!(first.is_none_or(|eta| eta >= 0.0 && eta.is_finite()));
            let tail = tail_threshold(dist, &m, location, share);
            prop_assert!(tail.is_none_or(|eta| eta > location && eta.is_finite()));
        }
    }

    #[test]
    fn a_larger_share_never_has_a_higher_threshold(
        seed in any::<u64>(),
        n in 2..2000_usize,
        shares in (1e-6..1.0_f64, 1e-6..1.0_f64),
    ) {
        let mut uniform = Uniform(seed);
        let values: Vec<f64> = (0..n).map(|_| uniform.pareto(0.3)).collect();
        let (few, many) = (shares.0.min(shares.1), shares.0.max(shares.1));
        for dist in ALL {
            let (high, low) = (first(dist, &values, few), first(dist, &values, many));
            prop_assert_eq!(high.is_some(), low.is_some());
            prop_assert!(high >= low, "{:?}: {:?} {:?}", dist, high, low);
        }
    }
}
