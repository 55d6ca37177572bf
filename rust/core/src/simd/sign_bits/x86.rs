//! A comparison gives the bits of a whole vector.

pub(in crate::simd) mod avx2 {
    use crate::simd::{Pair, normal, sign_bits};
    use std::arch::x86_64::{
        _CMP_GE_OQ, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_loadu_ps, _mm256_movemask_ps,
        _mm256_setzero_ps, _mm256_storeu_ps, _mm256_sub_ps,
    };

    #[target_feature(enable = "avx2")]
    pub(in crate::simd) fn run(x: &[f32], bits: &mut [u8]) {
        let (whole, rest) = x.as_chunks::<8>();
        let (bytes, end) = bits.split_at_mut(whole.len());
        for (block, out) in whole.iter().zip(bytes.as_chunks_mut().0) {
            // SAFETY: a block is a vector.
            let x = unsafe { _mm256_loadu_ps(block.as_ptr()) };
            let signs = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_setzero_ps());
            *out = [_mm256_movemask_ps(signs) as u8];
        }
        sign_bits::scalar(rest, end);
    }

    #[target_feature(enable = "avx2")]
    pub(in crate::simd) fn left(x: &mut [f32], [zeros, ones]: Pair<'_>, bits: &mut [u8]) {
        let (whole, rest) = x.as_chunks_mut::<8>();
        let (zeros, last_zeros) = zeros.split_at(whole.len() * 8);
        let (ones, last_ones) = ones.split_at(whole.len() * 8);
        let pairs = zeros.as_chunks::<8>().0.iter().zip(ones.as_chunks::<8>().0);
        let (bytes, end) = bits.split_at_mut(whole.len());
        for ((block, out), (zero, one)) in whole.iter_mut().zip(bytes.as_chunks_mut().0).zip(pairs)
        {
            // SAFETY: each of the three is a vector.
            let x = unsafe { _mm256_loadu_ps(block.as_ptr()) };
            // SAFETY: as above.
            let zero = unsafe { _mm256_loadu_ps(zero.as_ptr()) };
            // SAFETY: as above.
            let one = unsafe { _mm256_loadu_ps(one.as_ptr()) };
            let signs = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_setzero_ps());
            *out = [_mm256_movemask_ps(signs) as u8];
            // SAFETY: the feature is this function's.
            let left =
                unsafe { normal::avx2(_mm256_sub_ps(x, _mm256_blendv_ps(zero, one, signs))) };
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(block.as_mut_ptr(), left) };
        }
        sign_bits::left::scalar(rest, [last_zeros, last_ones], end);
    }
}

pub(in crate::simd) mod avx512 {
    use crate::simd::{Pair, normal, sign_bits};
    use std::arch::x86_64::{
        _CMP_GE_OQ, _mm512_cmp_ps_mask, _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_setzero_ps,
        _mm512_storeu_ps, _mm512_sub_ps,
    };

    #[target_feature(enable = "avx512f")]
    pub(in crate::simd) fn run(x: &[f32], bits: &mut [u8]) {
        let (whole, rest) = x.as_chunks::<16>();
        let (bytes, end) = bits.split_at_mut(whole.len() * 2);
        for (block, out) in whole.iter().zip(bytes.as_chunks_mut().0) {
            // SAFETY: a block is a vector.
            let x = unsafe { _mm512_loadu_ps(block.as_ptr()) };
            let signs = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_setzero_ps());
            *out = signs.to_le_bytes();
        }
        sign_bits::scalar(rest, end);
    }

    #[target_feature(enable = "avx512f")]
    pub(in crate::simd) fn left(x: &mut [f32], [zeros, ones]: Pair<'_>, bits: &mut [u8]) {
        let (whole, rest) = x.as_chunks_mut::<16>();
        let (zeros, last_zeros) = zeros.split_at(whole.len() * 16);
        let (ones, last_ones) = ones.split_at(whole.len() * 16);
        let pairs = zeros.as_chunks::<16>().0.iter().zip(ones.as_chunks::<16>().0);
        let (bytes, end) = bits.split_at_mut(whole.len() * 2);
        for ((block, out), (zero, one)) in whole.iter_mut().zip(bytes.as_chunks_mut().0).zip(pairs)
        {
            // SAFETY: each of the three is a vector.
            let x = unsafe { _mm512_loadu_ps(block.as_ptr()) };
            // SAFETY: as above.
            let zero = unsafe { _mm512_loadu_ps(zero.as_ptr()) };
            // SAFETY: as above.
            let one = unsafe { _mm512_loadu_ps(one.as_ptr()) };
            let signs = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_setzero_ps());
            *out = signs.to_le_bytes();
            // SAFETY: the feature is this function's.
            let left =
                unsafe { normal::avx512(_mm512_sub_ps(x, _mm512_mask_blend_ps(signs, zero, one))) };
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(block.as_mut_ptr(), left) };
        }
        sign_bits::left::scalar(rest, [last_zeros, last_ones], end);
    }
}
