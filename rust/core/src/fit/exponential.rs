//! The exponential distribution: magnitudes of a double exponential (Laplace) variable.

use super::Moments;

/// `eta` with `P(a > eta) = share`, the scale estimated by the mean.
pub(super) fn quantile(moments: &Moments, share: f64) -> Option<f64> {
    Some(moments.mean()? * -libm::log(share))
}
