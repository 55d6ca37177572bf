//! Sums of magnitudes and of their squares, and how many are not zero.
//!
//! Sums are float64 over sixteen lanes; element `i` of a block goes to lane `i % 16`. A square of a
//! float32 is exact in float64, and cannot overflow it.

use super::stamp::stamp;
use super::{LANES, reduce};

/// Running sums; one set for each chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes {
    sum: [f64; LANES],
    sum_sq: [f64; LANES],
    nonzero: [u32; LANES],
}

impl Lanes {
    /// Where the lanes of sums, sums of squares and counts begin.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) fn as_ptrs(&self) -> (*const f64, *const f64, *const u32) {
        (self.sum.as_ptr(), self.sum_sq.as_ptr(), self.nonzero.as_ptr())
    }

    /// As [`Lanes::as_ptrs`], to be written.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) fn as_mut_ptrs(&mut self) -> (*mut f64, *mut f64, *mut u32) {
        (self.sum.as_mut_ptr(), self.sum_sq.as_mut_ptr(), self.nonzero.as_mut_ptr())
    }

    /// The sum of magnitudes.
    pub fn sum(&self) -> f64 {
        reduce(&self.sum)
    }

    /// The sum of squared magnitudes.
    pub fn sum_sq(&self) -> f64 {
        reduce(&self.sum_sq)
    }

    /// How many elements were not zero.
    pub fn nonzero(&self) -> u64 {
        self.nonzero.iter().map(|&count| u64::from(count)).sum()
    }
}

#[inline(always)]
fn body(x: &[f32], lanes: &mut Lanes) {
    let Lanes { mut sum, mut sum_sq, mut nonzero } = *lanes;
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            let a = f64::from(group[i].abs());
            sum[i] += a;
            sum_sq[i] += a * a;
            nonzero[i] += u32::from(group[i] != 0.0);
        }
    }
    for (i, value) in rest.iter().enumerate() {
        let a = f64::from(value.abs());
        sum[i] += a;
        sum_sq[i] += a * a;
        nonzero[i] += u32::from(*value != 0.0);
    }
    *lanes = Lanes { sum, sum_sq, nonzero };
}

stamp!(fn(x: &[f32], lanes: &mut Lanes) => body);

#[cfg(test)]
mod tests {
    use super::Lanes;
    use crate::simd::{LANES, testing::levels_and_lengths};

    #[test]
    fn equals_sixteen_naive_sums_on_every_level() {
        levels_and_lengths(|kernels, x| {
            let mut expected = Lanes::default();
            for (i, v) in x.iter().enumerate() {
                let a = f64::from(v.abs());
                expected.sum[i % LANES] += a;
                expected.sum_sq[i % LANES] += a * a;
                expected.nonzero[i % LANES] += u32::from(*v != 0.0);
            }
            let mut lanes = Lanes::default();
            (kernels.moments)(&x, &mut lanes);
            assert_eq!(lanes, expected, "{:?} {}", kernels.level, x.len());
        });
    }
}
