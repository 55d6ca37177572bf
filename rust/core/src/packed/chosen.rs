//! A frame of codes that were chosen, in place of the nearest ones.

use half::f16;

use super::Packed;
use crate::frame::{Destination, Layout, write_dense};
use crate::pack::{IndexCoding, Pattern};
use crate::quantize::{LONGEST, Quantizer, SectionMut};
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
        let header = *self.frame.header();
        let layout = Layout {
            dtype: header.dtype,
            sparsifier: header.sparsifier,
            quantizer: Quantizer::Float32, // The coding says it.
            indices: IndexCoding::Auto,
            pattern: Pattern::Any,
        };
        let (coding, bits, numel) = (self.frame.value_coding(), self.bits as usize, count as u64);
        let mut out = Vec::new();
        write_dense(layout, numel, coding, &mut Destination::from(&mut out), |section| {
            let SectionMut { scales, codes: packed } = coding.begin(numel, numel, section);
            for ((word, step), base) in scales.iter_mut().zip(steps).zip(bases) {
                // Adding zero leaves no zero that is negative.
                let [a, b] = [near(*step + 0.0), near(*base)].map(f16::to_le_bytes);
                *word = [a[0], a[1], b[0], b[1]];
            }
            for (codes, out) in codes.chunks(LONGEST).zip(packed.chunks_mut(LONGEST / 8 * bits)) {
                if bits == 8 {
                    out.copy_from_slice(codes);
                } else {
                    self.kernels.pack(codes, bits as u32, out);
                }
            }
        })?;
        Ok(out)
    }
}
