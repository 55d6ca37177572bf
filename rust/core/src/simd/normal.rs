//! What is kept from one encode to the next: a normal number or zero.
//!
//! A value below the smallest normal number becomes a positive zero. What decays would otherwise end among
//! the subnormal numbers, where 0.9 times four of the smallest is four of them again, and every later
//! encode would take several times as long. It is done to numbers, not by the processor's mode
//! ([`float_mode`](super::float_mode)): what a mode flushes differs between processors, before or after
//! rounding, and it would flush what is only read, too.

/// The bits of a float32 that are all zero in zeros and in subnormal numbers alone.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
const EXPONENT: i32 = 0x7F80_0000;

/// The value, or a positive zero where it is below the smallest normal number.
#[inline(always)]
pub(crate) fn normal_or_zero(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { value }
}

/// The same of eight values.
///
/// # Safety
///
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx2(values: std::arch::x86_64::__m256) -> std::arch::x86_64::__m256 {
    use std::arch::x86_64::{
        _mm256_and_si256, _mm256_andnot_ps, _mm256_castps_si256, _mm256_castsi256_ps,
        _mm256_cmpeq_epi32, _mm256_set1_epi32, _mm256_setzero_si256,
    };
    // SAFETY: AVX2 is the caller's promise.
    unsafe {
        let exponents = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(EXPONENT));
        let small = _mm256_cmpeq_epi32(exponents, _mm256_setzero_si256());
        _mm256_andnot_ps(_mm256_castsi256_ps(small), values)
    }
}

/// The same of sixteen values.
///
/// # Safety
///
/// The CPU has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx512(values: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::{
        _mm512_castps_si512, _mm512_maskz_mov_ps, _mm512_set1_epi32, _mm512_test_epi32_mask,
    };
    // SAFETY: AVX-512 F is the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(values);
        let normal = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(EXPONENT));
        _mm512_maskz_mov_ps(normal, values)
    }
}

/// The same of four values.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(super) fn neon(values: std::arch::aarch64::float32x4_t) -> std::arch::aarch64::float32x4_t {
    use std::arch::aarch64::{
        vandq_u32, vdupq_n_u32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vtstq_u32,
    };
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let bits = vreinterpretq_u32_f32(values);
        let normal = vtstq_u32(bits, vdupq_n_u32(EXPONENT.cast_unsigned()));
        vreinterpretq_f32_u32(vandq_u32(bits, normal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn what_is_below_the_smallest_normal_number_is_a_positive_zero_and_all_else_stays() {
        let least = f32::MIN_POSITIVE;
        for kept in [least, least.next_up(), 1.0, f32::MAX, f32::INFINITY] {
            for value in [kept, -kept] {
                assert_eq!(normal_or_zero(value).to_bits(), value.to_bits());
            }
        }
        for small in [0.0, f32::from_bits(1), 1e-40, least.next_down()] {
            assert_eq!([small, -small].map(|v| normal_or_zero(v).to_bits()), [0, 0]);
        }
        assert!(normal_or_zero(f32::NAN).is_nan());
    }

    /// Sums and differences around the smallest normal number, of both signs, by every kernel that
    /// writes what is kept of one of them.
    #[test]
    fn every_kernel_keeps_normal_numbers_and_zeros_on_every_level() {
        levels_and_lengths(|kernels, x| {
            let step = |i: usize| (i % 37) as u32 * 500_000;
            let near: Vec<f32> = (0..x.len())
                .map(|i| f32::from_bits(step(i) | ((i as u32 % 3) & 1) << 31))
                .collect();
            let zeros = vec![0.0; x.len()];
            let expected: Vec<u32> = near.iter().map(|&v| normal_or_zero(v).to_bits()).collect();
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let mut out = zeros.clone();
            kernels.add(&mut out, &near, &zeros, 0.9);
            assert_eq!(bits(&out), expected, "{:?}", kernels.level());
            kernels.add(&mut out, &zeros, &near, 1.0);
            assert_eq!(bits(&out), expected, "{:?}", kernels.level());
            let mut left = near.clone();
            kernels.subtract(&mut left, &zeros);
            assert_eq!(bits(&left), expected, "{:?}", kernels.level());
            let mut left = near.clone();
            kernels.sign_bits_left(&mut left, [&zeros, &zeros], &mut vec![0; x.len().div_ceil(8)]);
            assert_eq!(bits(&left), expected, "{:?}", kernels.level());
            let mut left = near.clone();
            kernels.narrow_bf16_left(&mut left, &mut vec![[0; 2]; x.len()]);
            assert!(left.iter().all(|&v| v == 0.0 || v.is_normal()), "{:?}", kernels.level());
        });
    }
}
