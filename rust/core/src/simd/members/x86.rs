//! A comparison gives the bits of a whole vector, and `pdep` puts bits of numbers where their members are.

pub(in crate::simd) mod avx2 {
    use crate::simd::members::{mark_body, whole_groups};
    use std::arch::x86_64::{
        _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8,
        _mm256_set1_epi8, _mm256_sub_epi8, _pdep_u64,
    };

    #[target_feature(enable = "avx2")]
    pub(in crate::simd) fn masks(bytes: &[u8], first: u8, last: u8, out: &mut [u64]) {
        let start = _mm256_set1_epi8(first.cast_signed());
        let width = _mm256_set1_epi8((last - first).cast_signed());
        let inside = |half: &[u8; 32]| {
            // SAFETY: a half is a vector.
            let bytes = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            let beyond = _mm256_sub_epi8(bytes, start);
            let inside = _mm256_cmpeq_epi8(_mm256_min_epu8(beyond, width), beyond);
            u64::from(_mm256_movemask_epi8(inside).cast_unsigned())
        };
        whole_groups(bytes, out, |group| {
            let halves = group.as_chunks::<32>().0;
            inside(&halves[0]) | inside(&halves[1]) << 32
        });
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    pub(in crate::simd) fn mark(members: &[u64], bits: &[u64], seen: &mut u32, marks: &mut [u64]) {
        mark_body(members, bits, seen, marks, |bits, mask| _pdep_u64(bits, mask));
    }
}

pub(in crate::simd) mod avx512 {
    use crate::simd::members::whole_groups;
    use std::arch::x86_64::{
        _mm512_cmple_epu8_mask, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_sub_epi8,
    };

    pub(in crate::simd) use super::avx2::mark;

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(in crate::simd) fn masks(bytes: &[u8], first: u8, last: u8, out: &mut [u64]) {
        let start = _mm512_set1_epi8(first.cast_signed());
        let width = _mm512_set1_epi8((last - first).cast_signed());
        whole_groups(bytes, out, |group| {
            // SAFETY: a group is a vector.
            let bytes = unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
            _mm512_cmple_epu8_mask(_mm512_sub_epi8(bytes, start), width)
        });
    }
}
