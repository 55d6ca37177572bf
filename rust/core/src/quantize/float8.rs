//! 8-bit floats with one power of two per block of entries.
//!
//! Micikevicius et al., "FP8 Formats for Deep Learning", 2022, in the formats of the Open Compute
//! Project ([`crate::simd::float8`]). E5M2 is the 1-5-2 format that Wang, Choi, Brand, Chen and
//! Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating Point Numbers", NeurIPS 2018,
//! train with. Scales per block follow Rouhani et al., "Microscaling Data Formats for Deep Learning",
//! 2023. As there, the scale is a power of two: multiplying by it is exact, so the only error is that
//! of rounding to a code, and encoding a decoded frame again gives the same frame.
//!
//! Codes are used only on the wire: readers add float32 values to float32 sums and never add codes.

use super::ValueCoding;
use super::chance::Draw;
use super::power;
pub use crate::simd::float8::Format;
use crate::simd::{Kernels, Pair, Scaling};

/// A floating-point number of eight bits, times a power of two for each block.
///
/// Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float8 {
    /// How many bits the exponent and the mantissa have.
    pub format: Format,
    /// How values between two codes are rounded.
    pub rounding: Rounding,
    /// Entries that share a power of two, at least one; `None` rounds values unscaled.
    pub block: Option<u32>,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// How values between two codes are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// To the nearest code, ties to even.
    #[default]
    Nearest,
    /// Randomly to one of the two neighbours, without bias.
    Stochastic,
}

/// Bytes of parameters: the entries of a block, zero where values are not scaled.
pub(super) const PROLOGUE: usize = 4;

pub(super) fn parse(format: Format, prologue: [u8; PROLOGUE]) -> ValueCoding {
    let block = u32::from_le_bytes(prologue);
    ValueCoding::Float8 { format, block: (block > 0).then_some(block) }
}

/// Exponent of the largest finite code, whose significand is 1.75 in both formats.
const fn top(format: Format) -> i32 {
    match format {
        Format::E5M2 => 15,
        Format::E4M3 => 8,
    }
}

/// What codes are multiplied by: the smallest power of two that brings a magnitude of `peak` into
/// their range; zero for a block of zeros.
///
/// The largest codes reach 1.75 times 2^127 at most, and what is above saturates.
#[inline]
pub(super) fn scale(peak: f32, format: Format) -> f32 {
    const QUARTER: u32 = 1 << 21;
    // Adding just under a quarter carries into the exponent where the significand exceeds 1.75.
    let above = (peak.to_bits() + (QUARTER - 1)) >> 23;
    let normal = above.saturating_sub(top(format) as u32);
    if (1..=254 - top(format) as u32).contains(&normal) {
        return f32::from_bits(normal << 23);
    }
    if peak == 0.0 {
        return 0.0;
    }
    let (exponent, significand) = power::split(peak);
    let fits = significand <= 1.75;
    power::of(exponent - top(format) + i32::from(!fits), 127 - top(format))
}

/// Whether a frame may have this scale: a power of two for which no code is infinite, or zero.
pub(super) fn takes_scale(scale: f32, format: Format) -> bool {
    power::is_at_most(scale, 127 - top(format))
}

/// The sign in the highest bit.
pub(super) fn code(
    kernels: &Kernels,
    format: Format,
    values: &[f32],
    factors: Pair<'_>,
    draw: Draw,
    codes: &mut [u8],
) {
    if draw.by_chance {
        kernels.float8_stochastic(values, format, factors, draw.key, draw.first, codes);
    } else {
        kernels.float8_nearest(values, format, factors, codes);
    }
}

/// As [`code`]; leaves of each value what its code does not say.
pub(super) fn left(
    kernels: &Kernels,
    format: Format,
    values: &mut [f32],
    scaling: Scaling<'_>,
    draw: Draw,
    codes: &mut [u8],
) {
    if draw.by_chance {
        kernels.float8_stochastic_left(values, format, scaling, draw.key, draw.first, codes);
    } else {
        kernels.float8_nearest_left(values, format, scaling, codes);
    }
}

/// Whether all codes are finite.
pub(super) fn all_finite(format: Format, codes: &[u8]) -> bool {
    let largest = format.largest();
    codes
        .chunks(super::BLOCK)
        .all(|codes| codes.iter().fold(0, |most, code| (code & 0x7F).max(most)) <= largest)
}
