//! One bit per entry, its sign, and one magnitude for all entries.
//!
//! Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes `SignSGD` and other Gradient Compression
//! Schemes", ICML 2019, send the mean of magnitudes; Tang et al., "1-bit Adam", ICML 2021, the root
//! of the mean square. One bit cannot represent zero: zeros count as positive, and the memory
//! corrects the error.

use super::Summary;

/// The sign, and one magnitude for all entries.
///
/// Karimireddy et al., "Error Feedback Fixes `SignSGD` and other Gradient Compression Schemes",
/// ICML 2019.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignScale {
    /// Which magnitude.
    pub magnitude: Magnitude,
}

/// Which magnitude goes with the signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Magnitude {
    /// The mean of magnitudes.
    #[default]
    Mean,
    /// The root of the mean square.
    RootMeanSquare,
    /// What the sparsifier says that its entries have.
    Selector,
}

impl Magnitude {
    /// The scale of values of which this is known; `told` by the sparsifier.
    pub(super) fn scale(self, summary: &Summary, told: Option<f32>) -> f32 {
        let mean = || summary.mean_magnitude() as f32;
        match self {
            Self::Mean => mean(),
            Self::RootMeanSquare => summary.mean_square().sqrt() as f32,
            Self::Selector => told.unwrap_or_else(mean),
        }
    }
}
