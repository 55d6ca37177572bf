//! A sign and one of a few magnitudes, fitted to the values of each block.
//!
//! Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with
//! `SparseLoCo`", 2025, send the largest entries in two bits each: four bins of equal width around
//! the mean of the values, each decoded to the mean of its values. Values that were selected for their magnitude lie on both sides
//! of zero but not near it, so the bins in the middle are wasted. Here one bit is the sign, and the
//! others select one of the magnitudes that [`fit`] finds.

mod fit;

use super::{Scales, ValueCoding};
use crate::{Error, Result};

/// A sign and one of a few magnitudes that are fitted to the values.
///
/// Sarfi et al., "Communication Efficient LLM Pre-training with `SparseLoCo`", 2025, use two bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codebook {
    /// Bits per entry, including the sign, 1 to 4.
    pub bits: u8,
}

/// Bytes of parameters: the bits of a code, three zeros, and the entries of a block.
pub(super) const PROLOGUE: usize = 8;

/// How many bits a code may have: a sign alone up to eight magnitudes.
pub(super) const BITS: std::ops::RangeInclusive<u8> = 1..=4;

/// Entries of a block that a writer makes: their magnitudes cost 0.016 bits per entry at two bits.
pub(super) const BLOCK: u32 = 4096;

pub(super) fn parse(prologue: [u8; PROLOGUE]) -> Result<ValueCoding> {
    let [bits, reserved @ .., a, b, c, d] = prologue;
    let block = u32::from_le_bytes([a, b, c, d]);
    if !BITS.contains(&bits) || reserved != [0; 3] || block == 0 {
        return Err(Error::corrupt(format!(
            "a codebook of {bits} bits for blocks of {block}, reserved bytes {reserved:?}"
        )));
    }
    Ok(ValueCoding::Codebook { bits, block })
}

/// How many magnitudes codes of so many bits tell apart.
pub(super) const fn magnitudes(bits: u8) -> usize {
    1 << (bits - 1)
}

/// The magnitudes for these values, ascending.
pub(super) fn scales(bits: u8, values: &[f32]) -> Scales {
    fit::fit(values, magnitudes(bits))
}

/// Which magnitude is nearest in the lower bits (the lower of two), the sign in the highest.
pub(super) fn code(bits: u8, values: &[f32], scales: &Scales, codes: &mut [u8]) {
    let scales = &scales[..magnitudes(bits)];
    let mut middles = [f32::INFINITY; 7];
    for (middle, pair) in middles.iter_mut().zip(scales.windows(2)) {
        // Halved first: a sum could overflow.
        *middle = 0.5 * pair[0] + 0.5 * pair[1];
    }
    // As many comparisons as there are middles, known to the compiler.
    match *middles.split_at(scales.len() - 1).0 {
        [] => nearest(values, [], codes),
        [a] => nearest(values, [a], codes),
        [a, b, c] => nearest(values, [a, b, c], codes),
        _ => nearest(values, middles, codes),
    }
}

/// How many of these middles a magnitude is above, and above that the sign; `N` is one less than a
/// power of two.
fn nearest<const N: usize>(values: &[f32], middles: [f32; N], codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        let level: u8 = middles.iter().map(|&middle| u8::from(x.abs() > middle)).sum();
        *code = level | (u8::from(x < 0.0) * (N as u8 + 1));
    }
}

pub(super) fn values(bits: u8, codes: &[u8], scales: &Scales, out: &mut [f32]) {
    let sign = bits - 1;
    for (out, &code) in out.iter_mut().zip(codes) {
        let magnitude = scales[usize::from(code & 7 & !(1 << sign))];
        // Without a branch, which a random sign would send wrong every other time.
        *out = f32::from_bits(magnitude.to_bits() ^ u32::from(code >> sign) << 31);
    }
}

#[cfg(test)]
mod tests;
