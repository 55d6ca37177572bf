//! A frame of codes that were chosen, in place of the nearest ones.

use half::f16;

use super::Packed;
use crate::{Error, Result};

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

impl Packed<'_> {
    /// A frame like this one with other codes, steps and bases. Steps and bases are rounded to float16 under
    /// the power of two of this frame.
    pub fn with_codes(&self, chosen: Chosen<'_>) -> Result<Vec<u8>> {
        let (count, blocks) = (self.rows * self.cols, self.section.scales.len());
        let Chosen { codes, steps, bases } = chosen;
        let have = [codes.len(), steps.len(), bases.len()];
        if have != [count, blocks, blocks] {
            return Err(Error::argument(format!(
                "{have:?} codes, steps and bases are not {count} codes and {blocks} grids"
            )));
        }
        let most = ((1_u32 << self.bits) - 1) as u8;
        if let Some(code) = codes.iter().find(|code| **code > most) {
            return Err(Error::argument(format!(
                "a code is {code}, which has not {} bits",
                self.bits
            )));
        }
        if let Some(step) = steps.iter().find(|step| step.is_nan() || **step < 0.0) {
            return Err(Error::argument(format!("a step is {step}, not positive")));
        }
        let power = 1.0 / self.unit;
        let near = |number: f32| f16::from_f32(number * power);
        for (what, numbers) in [("step", steps), ("base", bases)] {
            if let Some(number) = numbers.iter().find(|number| !near(**number).is_finite()) {
                return Err(Error::argument(format!(
                    "a {what} is {number:e}, which is beyond float16 for weights of this size"
                )));
            }
        }
        // Adding zero leaves no step that is a negative zero.
        let grids = steps.iter().zip(bases).map(|(step, base)| [near(*step + 0.0), near(*base)]);
        self.rewrite(self.bits, grids, |at, out| out.copy_from_slice(&codes[at..][..out.len()]))
    }
}
