//! AVX2 and AVX-512: two masks for each vector, compressed in a register and stored whole.
//!
//! Magnitudes have no sign bit, so that comparing their bits as signed numbers orders them.

use crate::simd::above::SLACK;

/// The room that the output must have, checked once a call.
fn check(values: &[f32], out: &[u32]) {
    assert!(
        out.len() >= values.len() + SLACK,
        "the output of window holds the input and the slack"
    );
}

pub(in crate::simd) mod avx512 {
    use super::check;
    use crate::simd::window::scalar;
    use std::arch::x86_64::{
        _mm512_and_si512, _mm512_cmpgt_epi32_mask, _mm512_loadu_si512, _mm512_maskz_compress_epi32,
        _mm512_set1_epi32, _mm512_storeu_si512,
    };

    #[target_feature(enable = "avx512f,popcnt")]
    pub(in crate::simd) fn run(
        values: &[f32],
        low: u32,
        high: u32,
        out: &mut [u32],
    ) -> (usize, usize) {
        check(values, out);
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        let (below, limit) = (_mm512_set1_epi32(low as i32), _mm512_set1_epi32(high as i32));
        let (mut inside, mut above) = (0, 0);
        let (whole, _) = values.as_chunks::<16>();
        for vector in whole {
            // SAFETY: the vector is sixteen elements. So many fit behind those that were kept, which
            // are no more than those read, by the slack that `check` asks for.
            unsafe {
                let bits = _mm512_and_si512(_mm512_loadu_si512(vector.as_ptr().cast()), magnitude);
                let larger = _mm512_cmpgt_epi32_mask(bits, limit);
                let hits = _mm512_cmpgt_epi32_mask(bits, below) & !larger;
                let packed = _mm512_maskz_compress_epi32(hits, bits);
                _mm512_storeu_si512(out.as_mut_ptr().add(inside).cast(), packed);
                inside += hits.count_ones() as usize;
                above += larger.count_ones() as usize;
            }
        }
        scalar::from(16 * whole.len(), (inside, above), values, (low, high), out)
    }
}

pub(in crate::simd) mod avx2 {
    use super::check;
    use crate::simd::above::x86::avx2::SHUFFLE;
    use crate::simd::window::scalar;
    use std::arch::x86_64::{
        _mm256_and_si256, _mm256_castsi256_ps, _mm256_cmpgt_epi32, _mm256_loadu_si256,
        _mm256_movemask_ps, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_storeu_si256,
    };

    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::simd) fn run(
        values: &[f32],
        low: u32,
        high: u32,
        out: &mut [u32],
    ) -> (usize, usize) {
        check(values, out);
        let magnitude = _mm256_set1_epi32(0x7fff_ffff);
        let (below, limit) = (_mm256_set1_epi32(low as i32), _mm256_set1_epi32(high as i32));
        let (mut inside, mut above) = (0, 0);
        let (whole, _) = values.as_chunks::<8>();
        for vector in whole {
            // SAFETY: the vector is eight elements, a row of the table 32 bytes. So many fit behind
            // those that were kept, which are no more than those read, by the slack.
            unsafe {
                let bits = _mm256_and_si256(_mm256_loadu_si256(vector.as_ptr().cast()), magnitude);
                let larger = _mm256_cmpgt_epi32(bits, limit);
                let larger = _mm256_movemask_ps(_mm256_castsi256_ps(larger)) as u8;
                let hits = _mm256_cmpgt_epi32(bits, below);
                let hits = _mm256_movemask_ps(_mm256_castsi256_ps(hits)) as u8 & !larger;
                let lanes = _mm256_loadu_si256(SHUFFLE[hits as usize].as_ptr().cast());
                let packed = _mm256_permutevar8x32_epi32(bits, lanes);
                _mm256_storeu_si256(out.as_mut_ptr().add(inside).cast(), packed);
                inside += hits.count_ones() as usize;
                above += larger.count_ones() as usize;
            }
        }
        scalar::from(8 * whole.len(), (inside, above), values, (low, high), out)
    }
}
