//! Compacts the entries of a block whose magnitude is above a bound.
//!
//! `above(x, bound, base, indices, values) -> count` writes position `base + i` and value of each
//! `|x[i]| > bound`, ascending, to the front of `indices` and `values` and returns how many there
//! are. Both outputs hold at least `x.len() + SLACK` elements, because whole vectors are stored;
//! what lies behind the count is unspecified. NaN is never above a bound. A bound below zero takes
//! zeros, too.
//!
//! Groups of [`GROUP`] elements without a hit are skipped by one test, which is what makes a sparse
//! block as cheap as a maximum.

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) mod aarch64;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod front;
mod scalar;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) mod x86;

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
pub(in crate::simd) use front::Front;
pub(in crate::simd) use scalar::run as scalar;
#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar::run as neon;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{avx2::run as avx2, avx512::run as avx512};

/// Elements that outputs hold beyond the length of the input.
pub const SLACK: usize = 16;

/// Elements tested together.
const GROUP: usize = 64;

#[cfg(test)]
mod tests {
    use super::SLACK;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_a_filter_on_every_level() {
        levels_and_lengths(|kernels, mut x| {
            if let Some(last) = x.last_mut() {
                *last = f32::NAN;
            }
            for bound in [-1e-45, 0.0f32, 1e-40, 0.2, 0.25, 0.45, 1e29, f32::MAX] {
                let mut indices = vec![u32::MAX; x.len() + SLACK];
                let mut values = vec![f32::NAN; x.len() + SLACK];
                let count = kernels.above(&x, bound, 7, &mut indices, &mut values);
                let hits = || x.iter().enumerate().filter(|(_, v)| v.abs() > bound);
                assert_eq!(count, hits().count(), "{:?} {} {bound}", kernels.level(), x.len());
                for (j, (i, v)) in hits().enumerate() {
                    assert_eq!(indices[j], 7 + i as u32);
                    assert_eq!(values[j].to_bits(), v.to_bits());
                }
            }
        });
    }

    #[test]
    #[should_panic(expected = "outputs of above hold the input and the slack")]
    fn refuses_outputs_that_are_too_short() {
        let kernels = crate::simd::Kernels::current();
        kernels.above(&[1.0; 64], 0.0, 0, &mut [0; 64], &mut [0.0; 64]);
    }
}
