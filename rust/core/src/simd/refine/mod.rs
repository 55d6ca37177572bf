//! Drops, in place, the entries whose magnitude is not above a bound.
//!
//! `refine(indices, values, bound) -> count` moves those above the bound to the front, in order. Both
//! slices have the same length; what lies behind the count is unspecified. A bound below zero keeps
//! zeros, too.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar::run as neon;
pub(in crate::simd) use scalar::run as scalar;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{avx2::run as avx2, avx512::run as avx512};

#[cfg(test)]
mod tests {
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_retain_on_every_level() {
        levels_and_lengths(|kernels, x| {
            for bound in [-1e-45, 0.0f32, 1e-40, 0.2, 0.25, 0.45, 1e29, f32::MAX, f32::INFINITY] {
                let mut values = x.clone();
                let mut indices: Vec<u32> = (0..x.len() as u32).map(|i| 3 * i + 1).collect();
                let count = kernels.refine(&mut indices, &mut values, bound);
                let hits = || x.iter().enumerate().filter(|(_, v)| v.abs() > bound);
                assert_eq!(count, hits().count(), "{:?} {} {bound}", kernels.level(), x.len());
                for (j, (i, v)) in hits().enumerate() {
                    assert_eq!(indices[j], 3 * i as u32 + 1);
                    assert_eq!(values[j].to_bits(), v.to_bits());
                }
            }
        });
    }
}
