//! The largest of eight lanes takes three shuffles, which the compiler makes only at the end of a
//! loop of its own: it takes the lanes of short groups one by one.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi128_si32, _mm_max_epu32, _mm_shuffle_epi32, _mm256_and_si256,
    _mm256_castps_si256, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_ps,
    _mm256_max_epu32, _mm256_set1_epi32, _mm256_setzero_si256,
};

/// Magnitudes of sixteen values, the larger of each two.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::simd) fn larger(x: &[f32; 16]) -> __m256i {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    // SAFETY: sixteen values are two vectors.
    let (a, b) = unsafe { (_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) };
    let [a, b] = [_mm256_castps_si256(a), _mm256_castps_si256(b)];
    _mm256_max_epu32(_mm256_and_si256(a, magnitude), _mm256_and_si256(b, magnitude))
}

#[target_feature(enable = "avx2")]
fn peak(x: &[f32]) -> u32 {
    let mut peaks = _mm256_setzero_si256();
    let (whole, rest) = x.as_chunks::<16>();
    for x in whole {
        peaks = _mm256_max_epu32(peaks, larger(x));
    }
    if !rest.is_empty() {
        peaks = _mm256_max_epu32(peaks, larger(&crate::simd::padded(rest)));
    }
    largest(peaks)
}

/// The largest of eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(in crate::simd) fn largest(peaks: __m256i) -> u32 {
    let four = _mm_max_epu32(_mm256_castsi256_si128(peaks), _mm256_extracti128_si256::<1>(peaks));
    let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one) as u32
}

#[target_feature(enable = "avx2")]
pub(in crate::simd) fn of_groups(x: &[f32], len: usize, peaks: &mut [u32]) {
    for (out, group) in peaks.iter_mut().zip(x.chunks(len)) {
        *out = peak(group);
    }
}
