//! The largest magnitude of a block, as the bits of a float32 without its sign.
//!
//! Magnitudes order like their bits, infinity and NaN above every finite value: a result of
//! `0x7f80_0000` or more says that the block holds a non-finite value.

#[cfg(target_arch = "x86_64")]
pub(in crate::simd) mod x86;

use super::stamp::stamp;

/// The bits of positive infinity: the least that is not finite.
pub const NON_FINITE: u32 = 0x7f80_0000;

#[inline(always)]
pub(super) fn body(x: &[f32]) -> u32 {
    // A maximum may be taken in any order, so the compiler is free to choose the lanes.
    x.iter().fold(0, |peak, value| peak.max(value.to_bits() & 0x7fff_ffff))
}

stamp!(fn(x: &[f32]) -> u32 => body);

/// The same of each group of `len` values in a row, the last of which may be shorter.
pub(in crate::simd) mod groups {
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{of_groups as avx2, of_groups as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    pub(in crate::simd) fn scalar(x: &[f32], len: usize, peaks: &mut [u32]) {
        for (out, group) in peaks.iter_mut().zip(x.chunks(len)) {
            *out = super::body(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NON_FINITE;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_the_maximum_and_shows_what_is_not_finite() {
        levels_and_lengths(|kernels, mut x| {
            let expected = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            assert_eq!(kernels.peak(&x), expected.to_bits());
            for i in 0..x.len() {
                let kept = x[i];
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    x[i] = bad;
                    assert!(kernels.peak(&x) >= NON_FINITE);
                }
                x[i] = kept;
            }
        });
    }

    #[test]
    fn each_group_has_its_own() {
        levels_and_lengths(|kernels, x| {
            for len in (1..=70).chain([300]) {
                let expected: Vec<u32> = x.chunks(len).map(super::body).collect();
                let mut peaks = vec![1; expected.len()];
                kernels.group_peaks(&x, len, &mut peaks);
                assert_eq!(peaks, expected, "{:?} {len}", kernels.level());
            }
        });
    }
}
