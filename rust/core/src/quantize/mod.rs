//! Quantizers: how the values of the selected entries are coded.
//!
//! | quantizer | bits | scales | rounding |
//! |---|---|---|---|
//! | [`Quantizer::Float32`], [`Quantizer::BFloat16`], [`Quantizer::Float16`] | 32, 16 | none | to nearest, ties to even |
//! | [`Quantizer::Float8`] | 8 | one per block of entries, or none | to nearest, ties to even, or stochastic |
//! | [`Quantizer::Exponent`] | 8 | one per block of entries | stochastic |
//! | [`Quantizer::Codebook`] | 1 to 4 | one to eight per block of entries | to the sign and the nearest magnitude |
//! | [`Quantizer::Uniform`] | 2 to 8 | one per block of entries | stochastic |
//! | [`Quantizer::SignScale`] | 1 | one | to the sign |
//! | [`Quantizer::TwoMeans`] | 1 | two per column of positions | to the sign |
//! | [`Quantizer::Ternary`] | 2 | one | stochastic |
//!
//! Rounding saturates at the largest finite value: a finite value never becomes infinite.
//!
//! A [`Quantizer`] holds the options of a writer, a [`ValueCoding`] what a frame records. Each method
//! has its own file with the same few functions: `scales` of a group from its [`Summary`], `code` and
//! `values` for the entries of a group, and `parse` if a frame has parameters.

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
mod power;
mod sign_scale;
mod spread;
mod summary;
mod ternary;
mod two_means;
mod uniform;

pub(crate) use code::{Coder, Place, Room, encode, store};
pub use codebook::Codebook;
pub use coding::{QuantizerId, ValueCoding};
pub(crate) use coding::{Section, SectionMut};
pub(crate) use decode::Decoder;
pub use exponent::Exponent;
pub use float8::{Float8, Format, Rounding};
pub use float16::Float16;
pub(crate) use groups::Grouping;
pub use sign_scale::{Magnitude, SignScale};
pub(crate) use spread::LONGEST;
pub(crate) use summary::Summary;
pub use ternary::Ternary;
pub use two_means::TwoMeans;
pub use uniform::{Norm, Uniform};

use crate::rng::Key;
use crate::{Error, Result};

/// The value coding of a codec.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Quantizer {
    /// 32 bits, exact.
    #[default]
    Float32,
    /// The upper 16 bits of a float32, rounded to nearest even; saturates at the largest finite value.
    BFloat16,
    /// IEEE binary16, scaled if wanted.
    Float16(Float16),
    /// A floating-point number of eight bits, times a power of two for each block.
    Float8(Float8),
    /// A sign and a power of two, stochastically rounded.
    Exponent(Exponent),
    /// A sign and one of a few magnitudes that are fitted to the values.
    Codebook(Codebook),
    /// A sign and a level of a uniform grid from zero to the norm of a block, stochastically rounded.
    Uniform(Uniform),
    /// The sign, and one magnitude for all entries.
    SignScale(SignScale),
    /// One of two values: the mean of a column's entries >= 0, or of those below zero.
    TwoMeans(TwoMeans),
    /// Minus, zero or plus one magnitude, stochastically rounded.
    Ternary(Ternary),
}

/// What a quantizer receives in addition to the values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Hints {
    /// The key of this frame's random numbers, if it has any.
    pub key: Option<Key>,
    /// The magnitude of the entries according to the sparsifier.
    pub magnitude: Option<f32>,
}

/// The scales of one group; how many of them are used is up to the coding.
pub(crate) type Scales = [f32; 8];

/// Exponents that scaled float16 can have: from the largest float32 to the smallest.
pub const SCALE_EXPONENTS: std::ops::RangeInclusive<i16> = -112..=164;

impl Quantizer {
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Uniform(Uniform { bits, .. }) if !uniform::BITS.contains(&bits) => {
                Err(Error::argument(format!("bits must be 2 to 8, got {bits}")))
            }
            Self::Uniform(Uniform { block: 0, .. })
            | Self::Float8(Float8 { block: Some(0), .. }) => {
                Err(Error::argument("block must be at least 1, got 0"))
            }
            Self::Codebook(Codebook { bits }) if !codebook::BITS.contains(&bits) => {
                Err(Error::argument(format!("bits must be 1 to 4, got {bits}")))
            }
            Self::TwoMeans(TwoMeans { column: Some(0) }) => {
                Err(Error::argument("column must be at least 1, got 0"))
            }
            Self::Ternary(Ternary { clip: Some(clip), .. })
                if !(clip > 0.0 && clip.is_finite()) =>
            {
                Err(Error::argument(format!("clip must be finite and above 0, got {clip}")))
            }
            _ => Ok(()),
        }
    }

    /// The seed of its random numbers, if it draws any.
    pub fn seed(self) -> Option<u64> {
        match self {
            Self::Uniform(Uniform { seed, .. })
            | Self::Ternary(Ternary { seed, .. })
            | Self::Exponent(Exponent { seed })
            | Self::Float8(Float8 { rounding: Rounding::Stochastic, seed, .. }) => Some(seed),
            _ => None,
        }
    }

    /// The coding of a frame of a tensor of `numel` elements whose largest magnitude is `peak`.
    pub fn coding(self, numel: u64, peak: f32) -> ValueCoding {
        match self {
            Self::Float32 => ValueCoding::Float32,
            Self::BFloat16 => ValueCoding::BFloat16,
            Self::Float16(Float16 { scaled }) => {
                let exponent = scaled.then(|| float16::scale_exponent(peak));
                ValueCoding::Float16 { exponent }
            }
            Self::Float8(Float8 { format, block, .. }) => ValueCoding::Float8 { format, block },
            Self::Exponent(Exponent { .. }) => ValueCoding::Exponent { block: exponent::BLOCK },
            Self::Codebook(Codebook { bits }) => {
                ValueCoding::Codebook { bits, block: codebook::BLOCK }
            }
            Self::Uniform(Uniform { bits, block, .. }) => ValueCoding::Uniform { bits, block },
            Self::SignScale(SignScale { .. }) => ValueCoding::SignScale,
            Self::TwoMeans(TwoMeans { column }) => {
                let column = column.unwrap_or(numel.clamp(1, u64::from(u32::MAX)) as u32);
                ValueCoding::TwoMeans { column }
            }
            Self::Ternary(Ternary { .. }) => ValueCoding::Ternary,
        }
    }

    /// Whether [`Quantizer::coding`] depends on the largest magnitude.
    pub(crate) fn needs_peak(self) -> bool {
        self == Self::Float16(Float16 { scaled: true })
    }

    /// The scales of a group of these values, where nothing less will do.
    fn scales_of(self, values: &[f32]) -> Scales {
        match self {
            Self::Codebook(Codebook { bits }) => codebook::scales(bits, values),
            _ => Scales::default(),
        }
    }

    /// The scales of a group of which this is known.
    pub(crate) fn scales(self, summary: &Summary, magnitude: Option<f32>) -> Scales {
        let mut scales = Scales::default();
        match self {
            Self::Float32
            | Self::BFloat16
            | Self::Float16(Float16 { .. })
            | Self::Codebook(Codebook { .. }) => {}
            Self::Float8(Float8 { .. }) | Self::Exponent(Exponent { .. }) => {
                scales[0] = self.scale_of_peak(summary.peak());
            }
            Self::Uniform(Uniform { norm, .. }) => scales[0] = uniform::scale(summary, norm),
            Self::SignScale(SignScale { magnitude: which }) => {
                scales[0] = which.scale(summary, magnitude)
            }
            Self::TwoMeans(TwoMeans { .. }) => [scales[0], scales[1]] = two_means::scales(summary),
            Self::Ternary(Ternary { clip, .. }) => scales[0] = ternary::scale(summary, clip),
        }
        scales
    }
}

/// The longest group whose scales follow from [`Basis::Values`].
pub(crate) const LONGEST_FIT: usize = codebook::BLOCK as usize;

/// What the scales of a group follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The largest magnitude.
    Peak,
    /// A [`Summary`] without squares.
    Sides,
    /// The number of values, their squares and the largest magnitude.
    Squares,
    /// All of a [`Summary`].
    Sums,
    /// Nothing less than the values; groups are short enough for a cache.
    Values,
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
