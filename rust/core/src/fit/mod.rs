//! Sparsity-inducing distributions (SIDs): from the moments of magnitudes to a threshold.
//!
//! SIDCo models the magnitudes of a gradient by a one-sided distribution, fits it to a few moments and
//! takes the threshold that keeps a fraction `delta` of the entries from its quantile. Far in the tail
//! such a fit is poor, so it is repeated on what exceeds the last threshold (peaks over threshold):
//! [`first_threshold`] starts, [`tail_threshold`] continues, [`stages`] computes the fraction that
//! each stage keeps, and [`controller`] the number of stages.
//!
//! All of this is scalar work on a few `f64` numbers, using only the `libm` crate: the platform's own
//! logarithm would make thresholds, and so frames, differ between machines.
//!
//! Source: Abdelmoniem, Elzanaty, Alouini, Canini, "An Efficient Statistical-based Gradient
//! Compression Technique for Distributed Training Systems" (SIDCo), Machine Learning and Systems 3, 2021.

pub mod controller;
mod exponential;
mod gamma;
pub mod normal;
mod pareto;
mod special;
pub mod stages;

#[cfg(test)]
mod tests;

pub use controller::{Controller, Mode};
pub use stages::{FIRST_RATIO, Plan, StageRatios, max_stages, split};

/// The fewest exceedances a tail is fitted to; with fewer, the threshold stays where it is.
///
/// A moment estimate from fewer values is worth less than the exact selection it would save.
pub const MIN_TAIL: u64 = 8;

/// What SIDCo's authors' code adds to normalised magnitudes before it takes their logarithm.
pub(crate) const LOG_OFFSET: f64 = f64::EPSILON;

/// Sufficient statistics of a set of magnitudes `a >= 0` (or of exceedances over a location).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    /// How many magnitudes were summed. Zeros are counted in `zeros`, not here.
    pub count: u64,
    /// How many magnitudes were exactly zero and left out.
    pub zeros: u64,
    /// Sum of the magnitudes.
    pub sum: f64,
    /// Sum of their squares.
    pub sum_sq: f64,
    /// Sum of their natural logarithms.
    pub sum_ln: f64,
    /// Sum of the values with their signs, where it was asked for.
    pub signed: f64,
}

impl Moments {
    /// The moments of all `n` magnitudes as the published code takes them, which knows no zeros: they
    /// count as any other entry. It adds [`LOG_OFFSET`] to what it takes the logarithm of, magnitudes
    /// over their L2 norm, so that a zero counts as that share of the norm there.
    #[must_use]
    pub fn with_zeros(self, n: u64) -> Self {
        let zeros = n.saturating_sub(self.count);
        let least = LOG_OFFSET * libm::sqrt(self.sum_sq);
        let sum_ln = if zeros > 0 { zeros as f64 * libm::log(least) } else { 0.0 };
        Self { count: n, zeros: 0, sum_ln: self.sum_ln + sum_ln, ..self }
    }

    /// Mean of the non-zero magnitudes; `None` if there are none, or if it is no positive number.
    fn mean(&self) -> Option<f64> {
        positive(self.sum / self.count as f64)
    }

    /// Unbiased variance of the non-zero magnitudes; `None` if they have no spread to speak of.
    fn variance(&self, mean: f64) -> Option<f64> {
        // Below this share of the square, the difference is rounding of the two sums.
        const NO_SPREAD: f64 = 1e-9;
        let n = self.count as f64;
        let v = positive((self.sum_sq - n * mean * mean) / (n - 1.0))?;
        (v > NO_SPREAD * mean * mean).then_some(v)
    }
}

/// The assumed distribution of the magnitudes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Distribution {
    /// SIDCo-E: double exponential (Laplace) gradients, exponential at every stage.
    Exponential,
    /// SIDCo-GP: double gamma gradients at the first stage (the exact quantile, not the published
    /// closed form, whose bias all later stages would inherit), generalized Pareto after it.
    Gamma,
    /// SIDCo-P: double generalized Pareto gradients at every stage.
    #[default]
    GeneralizedPareto,
}

impl Distribution {
    /// Whether the first stage reads [`Moments::sum_ln`]; the others may leave it 0.
    pub fn needs_log(self) -> bool {
        self == Self::Gamma
    }
}

/// The threshold above which a fraction `delta` of all `n` magnitudes is expected.
///
/// `moments` are those of the non-zero magnitudes among the `n`. The distribution is fitted only to
/// them, for the fraction `min(1, delta * n / moments.count)`: no SID has a mass at zero, and the
/// gamma distribution's logarithm of zero would be infinite. The result is finite and `>= 0`; it is 0
/// if all non-zeros are wanted. It is `None` if nothing can be fitted (no non-zeros; no spread): the
/// caller must then select exactly. For the published fit, which includes zeros, pass
/// [`Moments::with_zeros`].
pub fn first_threshold(dist: Distribution, moments: &Moments, n: u64, delta: f64) -> Option<f64> {
    if moments.count == 0 {
        return None;
    }
    let share = positive(delta * (n as f64 / moments.count as f64))?;
    if share >= 1.0 {
        return Some(0.0);
    }
    let eta = match dist {
        Distribution::Exponential => exponential::quantile(moments, share),
        Distribution::Gamma => gamma::quantile(moments, share),
        Distribution::GeneralizedPareto => pareto::quantile(moments, share),
    }?;
    (eta >= 0.0 && eta.is_finite()).then_some(eta)
}

/// The threshold that a share `rho` of the magnitudes above `location` is expected to exceed.
///
/// `moments` are those of the exceedances `a - location` over the last threshold: over that, not
/// over the smallest survivor, which costs a pass and is undefined for one survivor. The answer is
/// finite and strictly greater than `location`; it is `None` where the fit cannot give such a
/// threshold (`rho` outside (0, 1), fewer than [`MIN_TAIL`] exceedances, no spread), and the
/// caller keeps the threshold it has.
pub fn tail_threshold(
    dist: Distribution,
    moments: &Moments,
    location: f64,
    rho: f64,
) -> Option<f64> {
    if moments.count < MIN_TAIL || !(rho > 0.0 && rho < 1.0) {
        return None;
    }
    let excess = match dist {
        Distribution::Exponential => exponential::quantile(moments, rho),
        Distribution::Gamma | Distribution::GeneralizedPareto => pareto::quantile(moments, rho),
    }?;
    let eta = location + excess;
    // Also refuses NaN, and an excess that rounding swallows.
    (eta > location && eta.is_finite()).then_some(eta)
}

/// `x` if it is a positive finite number.
fn positive(x: f64) -> Option<f64> {
    (x > 0.0 && x.is_finite()).then_some(x)
}
