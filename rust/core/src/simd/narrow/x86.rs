//! F16C: eight lanes at a time, nothing in between.

use super::{MAX, scalar};
use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_min_ps, _mm256_mul_ps, _mm256_set1_ps,
};

#[target_feature(enable = "avx,f16c")]
pub(in crate::simd) fn run(values: &[f32], factor: f32, codes: &mut [[u8; 2]]) {
    assert_eq!(values.len(), codes.len(), "a code for each value");
    let scale = _mm256_set1_ps(factor);
    let (highest, lowest) = (_mm256_set1_ps(MAX), _mm256_set1_ps(-MAX));
    let (whole, rest) = values.as_chunks::<8>();
    let (targets, end) = codes.as_chunks_mut::<8>();
    for (block, target) in whole.iter().zip(targets) {
        // SAFETY: a block is eight values of four bytes, a target eight codes of two.
        unsafe {
            let scaled = _mm256_mul_ps(_mm256_loadu_ps(block.as_ptr()), scale);
            let clamped = _mm256_max_ps(_mm256_min_ps(scaled, highest), lowest);
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clamped);
            _mm_storeu_si128(target.as_mut_ptr().cast(), halves);
        }
    }
    scalar(rest, factor, end);
}
