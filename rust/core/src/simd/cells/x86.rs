//! The least and the largest of eight lanes, for which the compiler gives up vectors of more than two in the
//! loop before.

use std::arch::x86_64::{
    __m256, _mm_cvtss_f32, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_loadu_ps,
    _mm256_max_ps, _mm256_min_ps, _mm256_movehdup_ps, _mm256_permute_ps, _mm256_permute2f128_ps,
    _mm256_set1_ps, _mm256_xor_ps,
};

/// See [`extremes_of_groups`](super::extremes_of_groups).
#[target_feature(enable = "avx2")]
pub(in crate::simd) fn extremes(x: &[f32], len: usize, out: &mut [[f32; 2]]) {
    for (out, group) in out.iter_mut().zip(x.chunks(len)) {
        let mut ends = [_mm256_set1_ps(group[0]); 2];
        let (whole, rest) = group.as_chunks::<8>();
        for x in whole {
            ends = widened(ends, x);
        }
        if !rest.is_empty() {
            let mut last = [group[0]; 8];
            last[..rest.len()].copy_from_slice(rest);
            ends = widened(ends, &last);
        }
        let [least, largest] = ends;
        // Four lanes of the one and the negative of the other, whose least is what is sought too.
        let sign = _mm256_set1_ps(-0.0);
        let largest = _mm256_xor_ps(largest, sign);
        let near = _mm256_permute2f128_ps::<0x20>(least, largest);
        let far = _mm256_permute2f128_ps::<0x31>(least, largest);
        let four = _mm256_min_ps(far, near);
        let two = _mm256_min_ps(_mm256_permute_ps::<0b11_10>(four), four);
        let one = _mm256_min_ps(_mm256_movehdup_ps(two), two);
        let (least, largest) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
        *out = [_mm_cvtss_f32(least), -_mm_cvtss_f32(largest)];
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn widened([least, largest]: [__m256; 2], x: &[f32; 8]) -> [__m256; 2] {
    // SAFETY: eight values are a vector.
    let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
    // Of a NaN and another, the second.
    [_mm256_min_ps(x, least), _mm256_max_ps(x, largest)]
}
