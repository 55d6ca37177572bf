//! A frame of codes that were chosen, in place of the nearest ones.

use half::f16;

use super::{Packed, write};
use crate::quantize::{Quantize, Quantizer, ValueCoding};
use crate::simd::Kernels;
use crate::sparsify::All;
use crate::{Dtype, Error, Result};

/// Codes and grids of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// A code for each entry.
    pub codes: &'a [u8],
    /// The distance of two codes, for each block.
    pub steps: &'a [f32],
    /// The value of code 0, for each block.
    pub bases: &'a [f32],
}

impl Chosen<'_> {
    /// The dense frame of `values` with these codes, steps and bases, on the grids of an `Affine`. Steps and
    /// bases are rounded to float16 under the power of two that encoding `values` gives.
    pub fn frame(self, values: &[f32], quantizer: Quantizer) -> Result<Vec<u8>> {
        let Quantizer::Affine(affine) = quantizer else {
            return Err(Error::argument("give the Affine that weights are packed with"));
        };
        let peak = values.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
        let coding = affine.coding(values.len() as u64, peak);
        let (bits, block, unit) = coding.grid();
        let shape = (values.len(), values.len().div_ceil(block as usize), u32::from(bits));
        let (kernels, coding) = (Kernels::current(), ValueCoding::from(coding));
        let grids = self.grids(shape, unit)?;
        write(kernels, (Dtype::F32, All::ID), shape.0, coding, grids, |at, out| self.fill(at, out))
    }

    /// Steps and bases in units of the frame, if there are as many as shall be, and codes of so many bits.
    fn grids(
        &self,
        (count, blocks, bits): (usize, usize, u32),
        unit: f32,
    ) -> Result<impl Iterator<Item = [f16; 2]>> {
        let Chosen { codes, steps, bases } = *self;
        let have = [codes.len(), steps.len(), bases.len()];
        if have != [count, blocks, blocks] {
            return Err(Error::argument(format!(
                "{have:?} codes, steps and bases are not {count} codes and {blocks} grids"
            )));
        }
        let most = ((1_u32 << bits) - 1) as u8;
        if let Some(code) = codes.iter().find(|code| **code > most) {
            return Err(Error::argument(format!("a code is {code}, which has not {bits} bits")));
        }
        if let Some(step) = steps.iter().find(|step| step.is_nan() || **step < 0.0) {
            return Err(Error::argument(format!("a step is {step}, not positive")));
        }
        let power = 1.0 / unit;
        let near = move |number: f32| f16::from_f32(number * power);
        for (what, numbers) in [("step", steps), ("base", bases)] {
            if let Some(number) = numbers.iter().find(|number| !near(**number).is_finite()) {
                return Err(Error::argument(format!(
                    "a {what} is {number:e}, which is beyond float16 for weights of this size"
                )));
            }
        }
        // Adding zero leaves no step that is a negative zero.
        Ok(steps.iter().zip(bases).map(move |(step, base)| [near(*step + 0.0), near(*base)]))
    }

    fn fill(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.codes[at..][..out.len()]);
    }
}

impl Packed<'_> {
    /// A frame like this one with other codes, steps and bases. Steps and bases are rounded to float16 under
    /// the power of two of this frame.
    pub fn with_codes(&self, chosen: Chosen<'_>) -> Result<Vec<u8>> {
        let shape = (self.rows * self.cols, self.section.scales.len(), self.bits);
        let grids = chosen.grids(shape, self.unit)?;
        self.rewrite(self.bits, grids, |at, out| chosen.fill(at, out))
    }
}
