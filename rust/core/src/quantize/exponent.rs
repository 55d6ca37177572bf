//! A sign and a randomly rounded power of two, unbiased: eight bits per entry.
//!
//! Horváth, Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed
//! Deep Learning", MSML 2022, definition 1. The paper always uses the powers from 2^-109 to 2^18. Here the largest of the
//! 127 powers of a block is the smallest one that is not below the block's largest magnitude. So no
//! value is too large, and only values below 2^-126 of that power are randomly rounded to zero or to
//! the smallest power.

use super::ValueCoding;
use super::power;
use crate::{Error, Result};

/// A sign and a power of two, stochastically rounded.
///
/// Horváth et al., "Natural Compression for Distributed Deep Learning", MSML 2022.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exponent {
    /// What the random numbers begin from.
    pub seed: u64,
}

/// Entries of a block that a writer makes: what a cache can hold, for one read of the tensor.
pub(super) const BLOCK: u32 = 2048;

/// Bytes of parameters: the entries of a block.
pub(super) const PROLOGUE: usize = 4;

/// The exponents that the largest power of a block may have.
const TOP: std::ops::RangeInclusive<i32> = -126..=127;

pub(super) fn parse(prologue: [u8; PROLOGUE]) -> Result<ValueCoding> {
    match u32::from_le_bytes(prologue) {
        0 => Err(Error::corrupt("exponents in blocks of 0 entries")),
        block => Ok(ValueCoding::Exponent { block }),
    }
}

/// The first power of two that is not below the largest magnitude; zero for a block of zeros.
///
/// There is none above 2^127: what exceeds it becomes that.
pub(super) fn scale(peak: f32) -> f32 {
    if peak == 0.0 {
        return 0.0;
    }
    let (exponent, significand) = power::split(peak);
    let above = exponent + i32::from(significand > 1.0);
    power::of(above.max(*TOP.start()), *TOP.end())
}

/// Whether a frame may have this scale.
pub(super) fn takes_scale(scale: f32) -> bool {
    power::is_at_most(scale, *TOP.end()) && (scale == 0.0 || scale >= f32::MIN_POSITIVE)
}

/// What values are multiplied by; a code has the sign in its highest bit.
pub(super) fn factor(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}
