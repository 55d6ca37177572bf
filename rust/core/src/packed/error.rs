//! What packed weights have lost.

use std::{iter, slice};

use super::{Packed, Reader};
use crate::quantize::{LONGEST, Summary};
use crate::simd::in_standard_mode;
use crate::{Error, Result, allocate};

impl Packed<'_> {
    /// The norm of the errors over that of the values that were packed. Of zeros, zero if they are zeros
    /// still, otherwise infinity. The decoded values are also written to `decoded`, which is of as many
    /// entries, or empty.
    pub fn error(&self, values: &[f32], decoded: &mut [f32]) -> Result<f64> {
        let numel = self.rows * self.cols;
        if values.len() != numel {
            return Err(Error::argument(format!(
                "there are {} values, not the {numel} that were packed",
                values.len()
            )));
        }
        if !decoded.is_empty() && decoded.len() != numel {
            let have = decoded.len();
            return Err(Error::argument(format!("{have} entries for {numel} decoded values")));
        }
        let count = numel.div_ceil(LONGEST);
        let mut sums: Vec<[f64; 2]> = allocate::zeros(count)?;
        let outs = decoded.chunks_mut(LONGEST).map(Some).chain(iter::repeat_with(|| None));
        let mut parts: Vec<_> = sums.iter_mut().zip(outs).collect();
        in_standard_mode(|| {
            self.share((count, LONGEST), 1, &mut parts, &|spans, parts| {
                let (mut reader, mut errors) = (Reader::new(self), [0.0; LONGEST]);
                for (span, (sum, out)) in spans.zip(parts) {
                    let first = span * LONGEST;
                    let values = &values[first..numel.min(first + LONGEST)];
                    let errors = &mut errors[..values.len()];
                    reader.read(first, errors);
                    if let Some(out) = out {
                        out.copy_from_slice(errors);
                    }
                    for (error, value) in errors.iter_mut().zip(values) {
                        *error -= value;
                    }
                    **sum = [&*errors, values].map(|values| {
                        let mut summary = Summary::default();
                        self.kernels.group_squares(
                            values,
                            values.len(),
                            slice::from_mut(&mut summary),
                        );
                        summary.squares
                    });
                }
            });
        });
        let [lost, norm] = [0, 1].map(|i| sums.iter().map(|sum: &[f64; 2]| sum[i]).sum::<f64>());
        Ok(if lost == 0.0 { 0.0 } else { libm::sqrt(lost / norm) })
    }
}
