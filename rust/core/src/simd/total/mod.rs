//! Sum of the values with their signs.
//!
//! Float64 over sixteen lanes; element `i` of a block goes to lane `i % 16`.

use super::stamp::stamp;
use super::{LANES, reduce};

/// Running sums; one set for each chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes([f64; LANES]);

impl Lanes {
    /// The sum.
    pub fn sum(&self) -> f64 {
        reduce(&self.0)
    }
}

#[inline(always)]
fn body(x: &[f32], lanes: &mut Lanes) {
    let mut sum = lanes.0;
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            sum[i] += f64::from(group[i]);
        }
    }
    for (sum, &value) in sum.iter_mut().zip(rest) {
        *sum += f64::from(value);
    }
    lanes.0 = sum;
}

stamp!(fn(x: &[f32], lanes: &mut Lanes) => body);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn is_the_sum_lane_by_lane_on_every_level() {
        levels_and_lengths(|kernels, x| {
            let mut lanes = Lanes::default();
            kernels.total(&x, &mut lanes);
            let mut naive = [0.0; LANES];
            for (i, &value) in x.iter().enumerate() {
                naive[i % LANES] += f64::from(value);
            }
            assert_eq!(lanes, Lanes(naive), "{:?} {}", kernels.level(), x.len());
            assert_eq!(lanes.sum(), reduce(&naive));
        });
    }
}
