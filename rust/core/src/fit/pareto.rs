//! The generalized Pareto distribution, with survival function
//! `(1 + alpha x / beta)^(-1 / alpha)` for `x >= 0`.

use super::Moments;

/// `eta` with `P(a > eta) = share`, shape and scale by the method of moments.
///
/// The estimator gives `alpha < 1/2`. Negative shapes have bounded support, which is right for
/// tails that a residual has cut off: the uniform distribution has `alpha = -1`.
pub(super) fn quantile(moments: &Moments, share: f64) -> Option<f64> {
    let mean = moments.mean()?;
    let r = mean * mean / moments.variance(mean)?;
    Some(survival_inverse(0.5 * (1.0 - r), 0.5 * mean * (1.0 + r), share))
}

/// `(beta / alpha) (share^-alpha - 1)`, without the 0/0 at `alpha = 0`, the exponential
/// distribution.
fn survival_inverse(alpha: f64, beta: f64, share: f64) -> f64 {
    let ln = -libm::log(share);
    if (alpha * ln).abs() < 1e-4 {
        beta * ln * (1.0 + 0.5 * alpha * ln)
    } else {
        beta * libm::expm1(alpha * ln) / alpha
    }
}

#[cfg(test)]
mod tests {
    use super::survival_inverse;

    #[test]
    fn shape_zero_is_the_exponential_law() {
        for share in [0.5, 0.25, 0.01, 1e-6] {
            let exponential = 3.0 * -libm::log(share);
            assert_eq!(survival_inverse(0.0, 3.0, share), exponential);
            let near = survival_inverse(1e-12, 3.0, share);
            assert!((near / exponential - 1.0).abs() < 1e-10);
        }
    }

    #[test]
    fn the_two_forms_meet() {
        // Both sides of the switch at |alpha ln| = 1e-4 agree to the square of that.
        for sign in [-1.0, 1.0] {
            let (a, b) = (sign * 0.99999e-4, sign * 1.00001e-4);
            let share = libm::exp(-1.0);
            let ratio = survival_inverse(a, 1.0, share) / survival_inverse(b, 1.0, share);
            assert!((ratio - 1.0).abs() < 3e-9, "{ratio}");
        }
    }

    #[test]
    fn survival_of_the_threshold_is_the_share() {
        for alpha in [-2.0, -1.0, -0.3, -1e-5, 1e-5, 0.2, 0.49] {
            for share in [0.9, 0.25, 0.01, 1e-4] {
                let x = survival_inverse(alpha, 2.0, share);
                let survival = libm::pow(1.0 + alpha * x / 2.0, -1.0 / alpha);
                assert!((survival / share - 1.0).abs() < 1e-6, "{alpha} {share} {survival}");
            }
        }
    }
}
