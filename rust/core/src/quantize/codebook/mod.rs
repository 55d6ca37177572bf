//! A sign and one of a few magnitudes, fitted to the values of each block.
//!
//! Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with
//! `SparseLoCo`", 2025, send the largest entries in two bits each: four bins of equal width around
//! the mean of the values, each decoded to the mean of its values. Values that were selected for their magnitude lie on both sides
//! of zero but not near it, so the bins in the middle are wasted. Here one bit is the sign, and the
//! others select one of the magnitudes that [`fit`] finds.

mod fit;

use std::ops::RangeInclusive;

use super::code::{self, Work, load};
use super::coding::Head;
use super::decode::{self, unpack};
use super::prologue::Prologue;
use super::spread::LONGEST;
use super::{Code, Fit, Grouping, Quantize, Scales, store};
use crate::part::{Options, Part};
use crate::{Error, Result};

/// A sign and one of a few magnitudes that are fitted to the values.
///
/// Sarfi et al., "Communication Efficient LLM Pre-training with `SparseLoCo`", 2025, use two bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codebook {
    /// Bits per entry, including the sign, 1 to 4.
    pub bits: u8,
}

/// How many bits a code may have: a sign alone up to eight magnitudes.
const BITS: RangeInclusive<u8> = 1..=4;

/// Entries of a block that a writer makes: their magnitudes cost 0.016 bits per entry at two bits.
pub(super) const BLOCK: u32 = 4096;

impl Part for Codebook {
    const KIND: &'static str = "codebook";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { bits: options.get("bits")? })
    }

    fn check(self) -> Result<()> {
        let bits = self.bits;
        if !BITS.contains(&bits) {
            return Err(Error::argument(format!("bits must be 1 to 4, got {bits}")));
        }
        Ok(())
    }

    fn examples() -> Vec<Self> {
        [2, 4, 1].map(|bits| Self { bits }).to_vec()
    }
}

impl Quantize for Codebook {
    type Coding = Coding;

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding { bits: self.bits, block: BLOCK }
    }

    fn fit(self) -> Fit<Self> {
        Fit::Groups(|quantizer, kernels, _, (values, len), out| {
            let each = magnitudes(quantizer.bits);
            for (values, out) in values.chunks(len).zip(out.chunks_mut(each)) {
                store(&scales(quantizer.bits, values)[..each], out);
            }
            kernels.peak(values)
        })
    }
}

/// A sign and one of the magnitudes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    bits: u8,
    /// Entries that share magnitudes, at least one.
    block: u32,
}

impl Code for Coding {
    fn prologue(self) -> Prologue {
        Prologue::of_bits(self.bits, self.block)
    }

    fn parse(_: Head, section: &[u8]) -> Result<Self> {
        let (bits, block) = Prologue::read_bits(section, &BITS, "a codebook")?;
        Ok(Self { bits, block })
    }

    fn bits(self) -> u32 {
        u32::from(self.bits)
    }

    fn grouping(self) -> Grouping {
        Grouping::Ranks(self.block)
    }

    fn scales(self) -> usize {
        magnitudes(self.bits)
    }

    /// Group by group: their magnitudes are too many to be spread over the entries.
    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        let Work { kernels, place, scratch, .. } = work;
        let (bits, each) = (self.bits(), self.scales());
        code::in_blocks(bits, values, codes, place, |values, out, place| {
            code::pack(kernels, (bits, values.len()), &mut scratch.codes, out, |codes| {
                let (first, len) = (place.first, values.len());
                self.grouping().for_each_run(first, len, place.positions, |group, range| {
                    let scales = load(each, place.scales, group);
                    code(self.bits, &values[range.clone()], &scales, &mut codes[range]);
                });
            });
        });
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        let Work { kernels, place, scratch, .. } = work;
        let bytes = scratch.codes.get_or_insert([0; LONGEST]);
        let (bits, each) = (self.bits(), self.scales());
        decode::in_blocks(bits, codes, values, place, |codes, out, place| {
            let codes = unpack(kernels, bits, codes, &mut bytes[..out.len()]);
            let (first, len) = (place.first, codes.len());
            self.grouping().for_each_run(first, len, place.positions, |group, range| {
                let scales = load(each, place.scales, group);
                self::values(self.bits, &codes[range.clone()], &scales, &mut out[range]);
            });
        });
    }
}

/// How many magnitudes codes of so many bits tell apart.
const fn magnitudes(bits: u8) -> usize {
    1 << (bits - 1)
}

/// The magnitudes for these values, ascending.
fn scales(bits: u8, values: &[f32]) -> Scales {
    fit::fit(values, magnitudes(bits))
}

/// Which magnitude is nearest in the lower bits (the lower of two), the sign in the highest.
fn code(bits: u8, values: &[f32], scales: &Scales, codes: &mut [u8]) {
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

fn values(bits: u8, codes: &[u8], scales: &Scales, out: &mut [f32]) {
    let sign = bits - 1;
    for (out, &code) in out.iter_mut().zip(codes) {
        let magnitude = scales[usize::from(code & 7 & !(1 << sign))];
        // Without a branch, which a random sign would send wrong every other time.
        *out = f32::from_bits(magnitude.to_bits() ^ u32::from(code >> sign) << 31);
    }
}

#[cfg(test)]
mod tests;
