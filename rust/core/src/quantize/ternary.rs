//! Minus, zero or plus one magnitude, randomly rounded without bias.
//!
//! Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
//! Distributed Deep Learning", NeurIPS 2017, algorithm 1 and section 3.3 (clipping). Values are
//! rounded like those of [`super::uniform`] with two bits: a sign and a grid of one level.

use super::Summary;

/// Minus, zero or plus one magnitude, stochastically rounded.
///
/// Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
/// Learning", NeurIPS 2017.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ternary {
    /// Clip values at this many standard deviations; `None` for no clipping.
    pub clip: Option<f32>,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// Bits of a code.
pub(super) const BITS: u8 = 2;

/// Magnitudes below this share of their root mean square are what rounding leaves of nothing.
const NOTHING: f64 = 1e-12;

/// The magnitude to send: the largest of values clipped at `clip` standard deviations.
///
/// Values that are all equal have no deviation to speak of, and are not clipped.
pub(super) fn scale(summary: &Summary, clip: Option<f32>) -> f32 {
    let mean = (summary.above + summary.below) / summary.count.max(1) as f64;
    let square = summary.mean_square();
    let variance = square - mean * mean;
    match clip {
        Some(clip) if variance > NOTHING * square => {
            summary.peak().min((f64::from(clip) * variance.sqrt()) as f32)
        }
        _ => summary.peak(),
    }
}

/// Zero, one for plus, two for minus: from a level and a sign, whose three is minus.
pub(super) fn from_levels(codes: &mut [u8]) {
    for code in codes {
        *code -= *code >> 1;
    }
}

/// The inverse.
pub(super) fn to_levels(codes: &mut [u8]) {
    for code in codes {
        *code += *code >> 1;
    }
}

/// Whether no code is three.
pub(super) fn all_valid(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | byte & byte >> 1 & 0x55) == 0
}
