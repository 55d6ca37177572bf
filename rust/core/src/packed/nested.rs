//! Further bits: codes that say where in the cell of its code a value lies.
//!
//! A grid of equal cells is one of fewer, larger cells: with `k` further bits a code is `first * 2^k +
//! second`, on a grid with the step `step / 2^k` and a base lower by `step * (2^k - 1) / 2^(k + 1)`,
//! both rounded to float16. The first codes can be read alone, and are what a grid of as many bits has.

use half::f16;

use super::Packed;
use crate::quantize::LONGEST;
use crate::simd::{fields, in_standard_mode};
use crate::{Error, Result, allocate};

/// Bytes of the checksum before the codes.
const HEAD: usize = 4;

impl Packed<'_> {
    /// The further codes of the tensor that was packed, after their checksum.
    pub fn further(&self, values: &[f32], more: u32) -> Result<Vec<u8>> {
        let len = self.further_len(more)?;
        if values.len() != self.rows * self.cols {
            let (have, expected) = (values.len(), self.rows * self.cols);
            return Err(Error::argument(format!("{have} values for {expected} codes")));
        }
        let mut out = allocate::zeros(len)?;
        in_standard_mode(|| {
            let (mut blocks, power) = (Blocks::new(self, more), 1.0 / self.unit);
            let (mut firsts, mut seconds) = ([0; LONGEST], [0; LONGEST]);
            let spans =
                values.chunks(LONGEST).zip(out[HEAD..].chunks_mut(LONGEST / 8 * more as usize));
            for (i, (values, out)) in spans.enumerate() {
                let firsts = &mut firsts[..values.len()];
                self.unpack(i * LONGEST, firsts);
                let seconds = &mut seconds[..values.len()];
                let last = ((1_u32 << more) - 1) as f32;
                for (j, (second, &first)) in seconds.iter_mut().zip(&*firsts).enumerate() {
                    let [step, base] = blocks.of(i * LONGEST + j);
                    let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
                    let place = (values[j] * power - base) * inverse;
                    let within = place.round_ties_even() - f32::from(first) * (last + 1.0);
                    *second = within.max(0.0).min(last) as u8;
                }
                self.kernels.pack(seconds, more, out);
            }
        });
        let sum = crc32c::crc32c(&out[HEAD..]);
        out[..HEAD].copy_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    /// The frame of all bits: those of this one and further ones.
    pub fn join(&self, further: &[u8], more: u32) -> Result<Vec<u8>> {
        let expected = self.further_len(more)?;
        if further.len() != expected {
            let have = further.len();
            let reason = format!("{have} bytes of further codes instead of {expected}");
            return Err(Error::corrupt(reason));
        }
        let (head, further) = further.split_at(HEAD);
        if head != crc32c::crc32c(further).to_le_bytes() {
            return Err(Error::corrupt("the checksum of the further codes does not match"));
        }
        if !fields::is_padded(further, more, (self.rows * self.cols) as u64) {
            return Err(Error::corrupt("a bit is one after the last further code"));
        }
        // A base may be finite where that of all bits, which is lower, is not.
        if self.section.scales.iter().any(|word| split(*word, more).iter().any(|n| !n.is_finite()))
        {
            return Err(Error::corrupt("a grid of all bits is beyond what float16 holds"));
        }
        let grids = self.section.scales.iter().map(|word| split(*word, more));
        let mut seconds = [0; LONGEST];
        self.rewrite(self.bits + more, grids, |at, codes| {
            self.unpack(at, codes);
            let seconds = &mut seconds[..codes.len()];
            let bytes = (codes.len() * more as usize).div_ceil(8);
            self.kernels.unpack(&further[at / 8 * more as usize..][..bytes], more, seconds);
            for (code, second) in codes.iter_mut().zip(seconds) {
                *code = *code << more | *second;
            }
        })
    }

    /// Bytes of further codes, if there can be so many more bits.
    fn further_len(&self, more: u32) -> Result<usize> {
        if more == 0 || self.bits + more > 8 {
            let bits = self.bits;
            return Err(Error::argument(format!(
                "{bits} bits and {more} further ones are not 2 to 8"
            )));
        }
        Ok(HEAD + (self.rows * self.cols * more as usize).div_ceil(8))
    }

    /// The codes from an entry on that is a multiple of [`LONGEST`], one per byte.
    fn unpack(&self, at: usize, codes: &mut [u8]) {
        let bits = self.bits as usize;
        let bytes = &self.section.codes[at / 8 * bits..][..(codes.len() * bits).div_ceil(8)];
        self.kernels.unpack(bytes, self.bits, codes);
    }
}

/// Step and base of the cells within those of a block, times two to the power of the frame's exponent.
fn split(word: [u8; 4], more: u32) -> [f16; 2] {
    let [a, b, c, d] = word;
    let [step, base] = [[a, b], [c, d]].map(|n| f16::from_le_bytes(n).to_f32());
    let parts = (1_u32 << more) as f32;
    let lower = base - step * ((parts - 1.0) / (2.0 * parts));
    [step / parts, lower].map(f16::from_f32)
}

/// The grids of entries in order.
struct Blocks<'a> {
    packed: &'a Packed<'a>,
    more: u32,
    end: usize,
    grid: [f32; 2],
}

impl<'a> Blocks<'a> {
    fn new(packed: &'a Packed<'a>, more: u32) -> Self {
        Self { packed, more, end: 0, grid: [0.0; 2] }
    }

    /// That of an entry, which is not before the last one.
    fn of(&mut self, entry: usize) -> [f32; 2] {
        if entry >= self.end {
            let block = entry / self.packed.block;
            self.end = (block + 1).saturating_mul(self.packed.block);
            self.grid = split(self.packed.section.scales[block], self.more).map(f16::to_f32);
        }
        self.grid
    }
}
