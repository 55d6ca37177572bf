//! Count, sum and sum of squares of the exceedances `|x| - location` where `|x| > location`.
//!
//! Exceedances are taken and summed in float64 over sixteen lanes; element `i` of a block goes to
//! lane `i % 16`. [`Lanes::push`] adds one element the same way, so that sums over entries that
//! were compacted before are the same to the last bit.

use super::stamp::stamp;
use super::{LANES, reduce};

/// Running sums; one set for each chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes {
    sum: [f64; LANES],
    sum_sq: [f64; LANES],
    count: [u32; LANES],
}

impl Lanes {
    /// The sum of exceedances.
    pub fn sum(&self) -> f64 {
        reduce(&self.sum)
    }

    /// The sum of squared exceedances.
    pub fn sum_sq(&self) -> f64 {
        reduce(&self.sum_sq)
    }

    /// How many magnitudes exceed the location.
    pub fn count(&self) -> u64 {
        self.count.iter().map(|&count| u64::from(count)).sum()
    }

    /// Adds the element at position `index` of its tensor.
    #[inline(always)]
    pub fn push(&mut self, index: u32, value: f32, location: f32) {
        let lane = index as usize % LANES;
        step(
            &mut self.sum[lane],
            &mut self.sum_sq[lane],
            &mut self.count[lane],
            value.abs(),
            location,
        );
    }
}

#[inline(always)]
fn step(sum: &mut f64, sum_sq: &mut f64, count: &mut u32, magnitude: f32, location: f32) {
    let exceeds = magnitude > location;
    let e = f64::from(magnitude) - f64::from(location);
    // Adding zero to a sum that is never negative zero leaves its bits alone.
    let e = if exceeds { e } else { 0.0 };
    *sum += e;
    *sum_sq += e * e;
    *count += u32::from(exceeds);
}

#[inline(always)]
fn body(x: &[f32], location: f32, lanes: &mut Lanes) {
    let Lanes { mut sum, mut sum_sq, mut count } = *lanes;
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            step(&mut sum[i], &mut sum_sq[i], &mut count[i], group[i].abs(), location);
        }
    }
    for (i, value) in rest.iter().enumerate() {
        step(&mut sum[i], &mut sum_sq[i], &mut count[i], value.abs(), location);
    }
    *lanes = Lanes { sum, sum_sq, count };
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
                (kernels.tail)(&x, location, &mut lanes);
                assert_eq!(lanes, expected, "{:?} {} {location}", kernels.level, x.len());
                assert_eq!(lanes.count(), x.iter().filter(|v| v.abs() > location).count() as u64);
            }
        });
    }
}
