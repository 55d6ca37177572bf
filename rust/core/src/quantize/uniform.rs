//! A sign and a level of a uniform grid, randomly rounded without bias.
//!
//! Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
//! Quantization and Encoding", NeurIPS 2017, section 3.1, with a fixed number of bits per level. The
//! level is in the lower bits of a code, the sign in the highest ([`crate::simd::grid`]).

use super::{Summary, ValueCoding};
use crate::{Error, Result};

/// A sign and a level of a uniform grid from zero to the norm of a block, stochastically rounded.
///
/// Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
/// NeurIPS 2017.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uniform {
    /// Bits per entry, including the sign, 2 to 8.
    pub bits: u8,
    /// Entries that share a norm, at least one.
    pub block: u32,
    /// Upper end of the grid.
    pub norm: Norm,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// What the grid of a block reaches up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Norm {
    /// The root of the sum of squares.
    #[default]
    L2,
    /// The largest magnitude.
    Max,
}

/// Bytes of parameters: the bits of a code, three zeros, and the entries of a block.
pub(super) const PROLOGUE: usize = 8;

/// How many bits a code may have: a sign and at least one for the level.
pub(super) const BITS: std::ops::RangeInclusive<u8> = 2..=8;

pub(super) fn parse(prologue: [u8; PROLOGUE]) -> Result<ValueCoding> {
    let [bits, reserved @ .., a, b, c, d] = prologue;
    let block = u32::from_le_bytes([a, b, c, d]);
    if !BITS.contains(&bits) || reserved != [0; 3] || block == 0 {
        return Err(Error::corrupt(format!(
            "levels of {bits} bits in blocks of {block}, reserved bytes {reserved:?}"
        )));
    }
    Ok(ValueCoding::Uniform { bits, block })
}

/// The norm of a block: never less than its largest magnitude, never more than a float32 holds.
pub(super) fn scale(summary: &Summary, norm: Norm) -> f32 {
    match norm {
        Norm::Max => summary.peak(),
        Norm::L2 => (summary.squares.sqrt() as f32).max(summary.peak()).min(f32::MAX),
    }
}
