//! Sparsity-inducing distributions (SIDs): from the moments of magnitudes to a threshold.
//!
//! Source: Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for
//! Distributed Training Systems" (SIDCo), MLSys 2021.

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
}
