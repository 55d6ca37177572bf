//! Sums of exceedances `max(|x| - location, 0)` and of their squares, and how many there are.
//!
//! With a location of zero these are the moments of the magnitudes. An exceedance is a float32
//! difference, rounded once; it is zero only where the magnitude is not above the location. Sums are
//! float64 over sixteen lanes; element `i` of a block goes to lane `i % 16`. A square of a float32
//! is exact in float64, and cannot overflow it.
//!
//! [`Lanes::push`] adds one element the same way, so that sums over entries that were compacted
//! before are the same to the last bit.

use super::stamp::stamp;
use super::{LANES, reduce};

/// Running sums; one set for each chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes {
    sum: [f64; LANES],
    sum_sq: [f64; LANES],
    count: u64,
}

impl Lanes {
    /// Where the lanes of sums and of sums of squares begin.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    pub(in crate::simd) fn as_ptrs(&self) -> (*const f64, *const f64) {
        (self.sum.as_ptr(), self.sum_sq.as_ptr())
    }

    /// As [`Lanes::as_ptrs`], to be written.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    pub(in crate::simd) fn as_mut_ptrs(&mut self) -> (*mut f64, *mut f64) {
        (self.sum.as_mut_ptr(), self.sum_sq.as_mut_ptr())
    }

    /// Adds to the number of magnitudes above the location.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    pub(in crate::simd) fn add_count(&mut self, more: u64) {
        self.count += more;
    }

    /// The sum of exceedances.
    pub fn sum(&self) -> f64 {
        reduce(&self.sum)
    }

    /// The sum of squared exceedances.
    pub fn sum_sq(&self) -> f64 {
        reduce(&self.sum_sq)
    }

    /// How many magnitudes are above the location.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the element at position `index` of its tensor.
    #[inline(always)]
    pub fn push(&mut self, index: u32, value: f32, location: f32) {
        let i = index as usize % LANES;
        self.count += u64::from(step(&mut self.sum[i], &mut self.sum_sq[i], value, location));
    }
}

/// Adds one exceedance; 1 if there is one.
#[inline(always)]
fn step(sum: &mut f64, sum_sq: &mut f64, value: f32, location: f32) -> u32 {
    let difference = value.abs() - location;
    let above = difference > 0.0;
    let exceedance = f64::from(if above { difference } else { 0.0 });
    *sum += exceedance;
    *sum_sq += exceedance * exceedance;
    u32::from(above)
}

#[inline(always)]
fn body(x: &[f32], location: f32, lanes: &mut Lanes) {
    let Lanes { mut sum, mut sum_sq, .. } = *lanes;
    let mut count = [0; LANES];
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            count[i] += step(&mut sum[i], &mut sum_sq[i], group[i], location);
        }
    }
    for (i, &value) in rest.iter().enumerate() {
        count[i] += step(&mut sum[i], &mut sum_sq[i], value, location);
    }
    let more: u64 = count.iter().map(|&count| u64::from(count)).sum();
    *lanes = Lanes { sum, sum_sq, count: lanes.count + more };
}

stamp!(fn(x: &[f32], location: f32, lanes: &mut Lanes) => body);

#[cfg(test)]
mod tests {
    use super::Lanes;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_pushing_the_exceeding_entries_alone() {
        levels_and_lengths(|kernels, x| {
            for location in [0.0f32, 0.25, 0.3, 1e29] {
                let mut expected = Lanes::default();
                for (i, v) in x.iter().enumerate().filter(|(_, v)| v.abs() > location) {
                    expected.push(i as u32, *v, location);
                }
                let mut lanes = Lanes::default();
                kernels.moments(&x, location, &mut lanes);
                assert_eq!(lanes, expected, "{:?} {} {location}", kernels.level(), x.len());
                let above = x.iter().filter(|v| v.abs() > location);
                assert_eq!(lanes.count(), above.clone().count() as u64);
                let sum: f64 = above.map(|v| f64::from(v.abs() - location)).sum();
                assert!((lanes.sum() - sum).abs() <= 1e-12 * sum);
            }
        });
    }
}
