//! Minus, zero or plus one magnitude, by chance, so that the mean is the value.
//!
//! Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
//! Distributed Deep Learning", NeurIPS 2017, algorithm 1 and section 3.3 (clipping). A value is one level of a
//! grid, with a sign: it is rounded as by [`super::uniform`] with two bits.

use super::chance::Draw;
use super::{BLOCK, Summary, uniform};

/// Bits of a code.
const BITS: u8 = 2;

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
    uniform::code(BITS, values, scale, draw, codes);
    // From a level and a sign: three is minus there.
    for code in codes {
        *code -= *code >> 1;
    }
}

pub(super) fn values(codes: &[u8], scale: f32, out: &mut [f32]) {
    let mut signed = [0; BLOCK];
    for (codes, out) in codes.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let signed = &mut signed[..codes.len()];
        for (signed, &code) in signed.iter_mut().zip(codes) {
            *signed = code + (code >> 1);
        }
        uniform::values(BITS, signed, scale, out);
    }
}

/// Whether no code is three.
pub(super) fn all_valid(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | byte & byte >> 1 & 0x55) == 0
}
