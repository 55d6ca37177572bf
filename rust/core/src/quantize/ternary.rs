//! Minus, zero or plus one magnitude, by chance, so that the mean is the value.
//!
//! Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
//! Distributed Deep Learning", NeurIPS 2017, algorithm 1 and section 3.3 (clipping).

use super::Summary;
use super::chance::{Draw, Share};

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

/// Zero, one for plus, two for minus.
pub(super) fn code(values: &[f32], scale: f32, draw: Draw, codes: &mut [u8]) {
    let share = Share::of(scale, 1.0);
    for ((i, code), &x) in codes.iter_mut().enumerate().zip(values) {
        let sent = draw.unit(i) < share.get(x.abs());
        *code = if sent { 1 + u8::from(x < 0.0) } else { 0 };
    }
}

pub(super) fn values(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = match code {
            0 => 0.0,
            1 => scale,
            _ => -scale,
        };
    }
}

/// Whether no code is three.
pub(super) fn all_valid(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | byte & byte >> 1 & 0x55) == 0
}
