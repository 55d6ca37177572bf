//! Signs of values, a bit each from the least significant up: one where a value is not below zero.
//!
//! The kernel writes the bits. [`left`] writes them too, and subtracts from each value what its bit stands
//! for: the first of the entry's pair where it is zero, the second where it is one. A byte
//! holds eight values; if fewer are left, its upper bits are zero.

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar as neon;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{avx2::run as avx2, avx512::run as avx512};

pub(in crate::simd) fn scalar(x: &[f32], bits: &mut [u8]) {
    for (byte, x) in bits.iter_mut().zip(x.chunks(8)) {
        *byte = x.iter().rev().fold(0, |byte, &x| byte << 1 | u8::from(x >= 0.0));
    }
}

/// The signs, and what they leave.
pub(in crate::simd) mod left {
    use crate::simd::{Pair, normal_or_zero};

    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{avx2::left as avx2, avx512::left as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    pub(in crate::simd) fn scalar(x: &mut [f32], [zeros, ones]: Pair<'_>, bits: &mut [u8]) {
        super::scalar(x, bits);
        for (x, (&zero, &one)) in x.iter_mut().zip(zeros.iter().zip(ones)) {
            *x = normal_or_zero(*x - if *x >= 0.0 { one } else { zero });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::kept;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_signs_that_are_packed_and_subtracted_one_by_one() {
        levels_and_lengths(|kernels, x| {
            let codes: Vec<u8> = x.iter().map(|&x| u8::from(x >= 0.0)).collect();
            let mut expected = vec![0xAA; x.len().div_ceil(8)];
            kernels.pack(&codes, 1, &mut expected);
            let mut bits = vec![0xAA; expected.len()];
            kernels.sign_bits(&x, &mut bits);
            assert_eq!(bits, expected, "{:?} {}", kernels.level(), x.len());
            let (mut left, mut again) = (x.clone(), vec![0xAA; expected.len()]);
            let pairs =
                [-0.5, 0.25].map(|v| (0..x.len()).map(|i| v * i as f32).collect::<Vec<_>>());
            kernels.sign_bits_left(&mut left, [&pairs[0], &pairs[1]], &mut again);
            assert_eq!(again, expected, "{:?} {}", kernels.level(), x.len());
            for (i, (left, x)) in left.iter().zip(&x).enumerate() {
                let sent = i as f32 * if *x >= 0.0 { 0.25 } else { -0.5 };
                assert_eq!(left.to_bits(), kept(x - sent).to_bits());
            }
        });
    }
}
