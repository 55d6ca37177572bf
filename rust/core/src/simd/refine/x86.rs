//! AVX2 and AVX-512: the compaction of [`above`](crate::simd::above), fed from lists.
//!
//! In place is safe with whole-vector stores: the entries kept are never ahead of those read, so a
//! store ends no later than the vector that was loaded before it.

pub(in crate::simd) mod avx512 {
    use crate::simd::refine::scalar;
    use std::arch::x86_64::{
        _CMP_GT_OQ, _mm512_abs_ps, _mm512_cmp_ps_mask, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_maskz_compress_epi32, _mm512_maskz_compress_ps, _mm512_set1_ps, _mm512_storeu_ps,
        _mm512_storeu_si512,
    };

    #[target_feature(enable = "avx512f,popcnt")]
    pub(in crate::simd) fn run(indices: &mut [u32], values: &mut [f32], bound: f32) -> usize {
        assert_eq!(indices.len(), values.len(), "lists of one length");
        let whole = values.len() / 16 * 16;
        let limit = _mm512_set1_ps(bound);
        let mut count = 0;
        for at in (0..whole).step_by(16) {
            // SAFETY: both lists hold sixteen elements from `at` on, and so from `count <= at` on.
            unsafe {
                let v = _mm512_loadu_ps(values.as_ptr().add(at));
                let i = _mm512_loadu_si512(indices.as_ptr().add(at).cast());
                let mask = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(_mm512_abs_ps(v), limit);
                let (v, i) =
                    (_mm512_maskz_compress_ps(mask, v), _mm512_maskz_compress_epi32(mask, i));
                _mm512_storeu_ps(values.as_mut_ptr().add(count), v);
                _mm512_storeu_si512(indices.as_mut_ptr().add(count).cast(), i);
                count += mask.count_ones() as usize;
            }
        }
        scalar::from(whole, count, indices, values, bound)
    }
}

pub(in crate::simd) mod avx2 {
    use crate::simd::above::x86::avx2::SHUFFLE;
    use crate::simd::refine::scalar;
    use std::arch::x86_64::{
        _CMP_GT_OQ, _mm256_and_ps, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_loadu_ps,
        _mm256_loadu_si256, _mm256_movemask_ps, _mm256_permutevar8x32_epi32,
        _mm256_permutevar8x32_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_storeu_ps,
        _mm256_storeu_si256,
    };

    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::simd) fn run(indices: &mut [u32], values: &mut [f32], bound: f32) -> usize {
        assert_eq!(indices.len(), values.len(), "lists of one length");
        let whole = values.len() / 8 * 8;
        let limit = _mm256_set1_ps(bound);
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
        let mut count = 0;
        for at in (0..whole).step_by(8) {
            // SAFETY: both lists hold eight elements from `at` on, and so from `count <= at` on; a
            // row of the table is 32 bytes.
            unsafe {
                let v = _mm256_loadu_ps(values.as_ptr().add(at));
                let i = _mm256_loadu_si256(indices.as_ptr().add(at).cast());
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(_mm256_and_ps(v, magnitude), limit);
                let mask = _mm256_movemask_ps(above) as u8;
                let lanes = _mm256_loadu_si256(SHUFFLE[mask as usize].as_ptr().cast());
                let (v, i) =
                    (_mm256_permutevar8x32_ps(v, lanes), _mm256_permutevar8x32_epi32(i, lanes));
                _mm256_storeu_ps(values.as_mut_ptr().add(count), v);
                _mm256_storeu_si256(indices.as_mut_ptr().add(count).cast(), i);
                count += mask.count_ones() as usize;
            }
        }
        scalar::from(whole, count, indices, values, bound)
    }
}
