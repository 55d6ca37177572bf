//! Quantizers: how the values of the selected entries are coded.
//!
//! Rounding saturates at the largest finite value: a finite value never becomes infinite.
//!
//! A [`Quantizer`] holds the options of a writer, a [`ValueCoding`] what a frame records. Each has a
//! file of its own, with a struct of the options ([`Quantize`]), and a `Coding` of what readers need
//! ([`Code`]). Codings that work alike share how: [`scaled`] those whose codes are values times a
//! factor of their group, [`signs`] those of one bit.

mod affine;
mod bfloat16;
mod chance;
mod code;
mod codebook;
mod coding;
mod decode;
mod exponent;
mod fit;
mod float16;
mod float32;
mod float8;
mod groups;
mod ids;
mod lossless;
mod power;
mod prologue;
mod registry;
mod scaled;
mod sign_scale;
mod signs;
mod spread;
mod summary;
mod ternary;
mod two_means;
mod uniform;

pub use affine::AffineFit;
pub(crate) use code::{Coder, Scratch, encode, store};
pub(crate) use coding::{Code, Section, SectionMut};
pub(crate) use decode::Decoder;
pub(crate) use fit::{Basis, Fit, LONGEST_FIT, Scales};
pub use float8::{Format, Rounding};
pub use float16::SCALE_EXPONENTS;
pub(crate) use groups::{Grouping, Place};
pub use ids::QuantizerId;
pub use lossless::Float;
pub use sign_scale::Magnitude;
pub(crate) use spread::LONGEST;
pub(crate) use summary::Summary;
pub use uniform::Norm;

use crate::part::{Part, parts};
use crate::rng::Key;

registry::quantizers! { $
    Float32 in float32 = 0 "float32";
    BFloat16 in bfloat16 = 1 "bfloat16";
    Float16 (Float16) in float16 = 2 "float16", 3 "float16 (scaled)";
    Float8 (Float8) in float8 = 4 "float8-e5m2", 5 "float8-e4m3";
    Uniform (Uniform) in uniform = 6 "uniform";
    SignScale (SignScale) in sign_scale = 7 "sign-scale";
    TwoMeans (TwoMeans) in two_means = 8 "two-means";
    Ternary (Ternary) in ternary = 9 "ternary";
    Codebook (Codebook) in codebook = 10 "codebook";
    Exponent (Exponent) in exponent = 11 "exponent";
    Affine (Affine) in affine = 12 "affine";
    Lossless (Lossless) in lossless = 13 "lossless";
}

/// What a quantizer says about itself, besides its options.
pub(crate) trait Quantize: Part {
    /// How its values are coded.
    type Coding: Code;

    /// What is known of it before any value is.
    fn facts(self) -> Facts {
        Facts::default()
    }

    /// The coding of a frame of a tensor of `numel` elements whose largest magnitude is `peak`.
    fn coding(self, numel: u64, peak: f32) -> Self::Coding;

    /// How the scales of a group follow from its values.
    fn fit(self) -> Fit<Self> {
        Fit::None
    }
}

/// What is known of a quantizer before any value is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    /// The seed of its random numbers, if it draws any.
    pub seed: Option<u64>,
    /// Whether [`Quantize::coding`] depends on the largest magnitude.
    pub needs_peak: bool,
    /// Whether it takes [`Hints::magnitude`], which not every sparsifier tells.
    pub needs_magnitude: bool,
    /// Whether every value is decoded as it was.
    pub is_exact: bool,
}

impl Quantizer {
    /// The seed of its random numbers, if it draws any.
    pub fn seed(self) -> Option<u64> {
        each_quantizer!(self, quantizer => quantizer.facts().seed)
    }

    /// The coding of a frame of a tensor of `numel` elements whose largest magnitude is `peak`.
    pub fn coding(self, numel: u64, peak: f32) -> ValueCoding {
        each_quantizer!(self, quantizer => quantizer.coding(numel, peak).into())
    }

    /// Whether [`Quantizer::coding`] depends on the largest magnitude.
    pub(crate) fn needs_peak(self) -> bool {
        each_quantizer!(self, quantizer => quantizer.facts().needs_peak)
    }

    /// Whether it takes [`Hints::magnitude`].
    pub(crate) fn needs_magnitude(self) -> bool {
        each_quantizer!(self, quantizer => quantizer.facts().needs_magnitude)
    }

    /// Whether every value is decoded as it was.
    pub(crate) fn is_exact(self) -> bool {
        each_quantizer!(self, quantizer => quantizer.facts().is_exact)
    }
}

/// What a quantizer receives in addition to the values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Hints {
    /// The key of this frame's random numbers, if it has any.
    pub key: Option<Key>,
    /// The magnitude of the entries according to the sparsifier.
    pub magnitude: Option<f32>,
}

/// Values handled at a time where a buffer stands between two steps: small enough for the L1 cache.
pub(crate) const BLOCK: usize = 256;

/// Whether no 16-bit code has all bits of its exponent set.
fn finite_halves(bytes: &[u8], exponent: u16) -> bool {
    let (codes, _) = bytes.as_chunks();
    // A fold over whole blocks vectorises; an early exit within them would not.
    codes.chunks(BLOCK).all(|block| {
        let finite = |code: &[u8; 2]| u16::from_le_bytes(*code) & exponent != exponent;
        block.iter().fold(true, |all, code| all & finite(code))
    })
}

/// The largest magnitude of finite values.
pub(crate) fn peak(values: &[f32]) -> f32 {
    // Magnitudes compare as their bits do.
    let bits = values.iter().fold(0, |largest, v| (v.to_bits() & 0x7FFF_FFFF).max(largest));
    f32::from_bits(bits)
}

#[cfg(test)]
mod tests;
