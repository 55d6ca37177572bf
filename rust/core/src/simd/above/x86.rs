//! AVX2 and AVX-512: a mask for each vector, compressed in a register and stored whole.
//!
//! Storing a whole vector and advancing by the number of hits beats the masked store to memory,
//! which some CPUs run as microcode. The [`SLACK`](super::SLACK) behind the outputs takes what is too
//! much.

pub(in crate::simd) mod avx512 {
    use crate::simd::above::{Front, GROUP};
    use std::arch::x86_64::{
        __m512, _CMP_GT_OQ, _mm512_abs_ps, _mm512_add_epi32, _mm512_cmp_ps_mask, _mm512_loadu_ps,
        _mm512_mask_cmp_ps_mask, _mm512_maskz_compress_epi32, _mm512_maskz_compress_ps,
        _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32,
        _mm512_storeu_ps, _mm512_storeu_si512,
    };

    /// Stores the lanes of `v` in `mask` and their positions.
    ///
    /// # Safety
    ///
    /// As of [`Front::ends`].
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    pub(in crate::simd) unsafe fn store(v: __m512, mask: u16, at: u32, to: &mut Front) {
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let positions = _mm512_add_epi32(_mm512_set1_epi32(at as i32), lanes);
        // SAFETY: there is room for sixteen elements, by the promise.
        unsafe {
            let (indices, values) = to.ends();
            let packed = _mm512_maskz_compress_epi32(mask, positions);
            _mm512_storeu_si512(indices.cast(), packed);
            _mm512_storeu_ps(values, _mm512_maskz_compress_ps(mask, v));
        }
        to.advance(size_of::<u32>() * mask.count_ones() as usize);
    }

    #[target_feature(enable = "avx512f,popcnt")]
    pub(in crate::simd) fn run(
        x: &[f32],
        bound: f32,
        base: u32,
        indices: &mut [u32],
        values: &mut [f32],
    ) -> usize {
        let mut to = Front::of(x.len(), indices, values);
        let limit = _mm512_set1_ps(bound);
        let (groups, rest) = x.as_chunks::<GROUP>();
        for (g, group) in groups.iter().enumerate() {
            let mut v = [_mm512_set1_ps(0.0); 4];
            let mut masks = [0u16; 4];
            for j in 0..4 {
                // SAFETY: a group is 64 elements, of which these are 16 j to 16 j + 15.
                v[j] = unsafe { _mm512_loadu_ps(group.as_ptr().add(16 * j)) };
                masks[j] = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(_mm512_abs_ps(v[j]), limit);
            }
            if masks[0] | masks[1] | masks[2] | masks[3] == 0 {
                continue;
            }
            for j in 0..4 {
                let at = base + (g * GROUP + 16 * j) as u32;
                // SAFETY: vectors follow one another.
                unsafe { store(v[j], masks[j], at, &mut to) };
            }
        }
        let done = x.len() - rest.len();
        for (j, part) in rest.chunks(16).enumerate() {
            let live = u16::MAX >> (16 - part.len());
            // SAFETY: the mask admits the `part.len()` elements that are there, no others are read.
            let v = unsafe { _mm512_maskz_loadu_ps(live, part.as_ptr()) };
            let mask = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(live, _mm512_abs_ps(v), limit);
            let at = base + (done + 16 * j) as u32;
            // SAFETY: as above.
            unsafe { store(v, mask, at, &mut to) };
        }
        to.count()
    }
}

pub(in crate::simd) mod avx2 {
    use crate::simd::above::scalar;
    use crate::simd::above::{Front, GROUP};
    use std::arch::x86_64::{
        __m256, _CMP_GT_OQ, _mm256_add_epi32, _mm256_and_ps, _mm256_castsi256_ps, _mm256_cmp_ps,
        _mm256_loadu_ps, _mm256_loadu_si256, _mm256_movemask_ps, _mm256_permutevar8x32_ps,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_storeu_ps, _mm256_storeu_si256,
    };

    /// For each mask of eight lanes, the lanes that are set, ascending, then zeros.
    pub(in crate::simd) static SHUFFLE: [[u32; 8]; 256] = shuffles();

    const fn shuffles() -> [[u32; 8]; 256] {
        let mut table = [[0; 8]; 256];
        let mut mask = 0;
        while mask < 256 {
            let (mut lane, mut at) = (0, 0);
            while lane < 8 {
                if mask >> lane & 1 == 1 {
                    table[mask][at] = lane;
                    at += 1;
                }
                lane += 1;
            }
            mask += 1;
        }
        table
    }

    /// Stores the lanes of `v` in `mask` and their positions.
    ///
    /// # Safety
    ///
    /// As of [`Front::ends`].
    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::simd) unsafe fn store(v: __m256, mask: u8, at: u32, to: &mut Front) {
        // SAFETY: a row of the table is 32 bytes; there is room for eight elements, by the promise.
        unsafe {
            let (indices, values) = to.ends();
            let lanes = _mm256_loadu_si256(SHUFFLE[mask as usize].as_ptr().cast());
            let positions = _mm256_add_epi32(_mm256_set1_epi32(at as i32), lanes);
            _mm256_storeu_si256(indices.cast(), positions);
            _mm256_storeu_ps(values, _mm256_permutevar8x32_ps(v, lanes));
        }
        to.advance(size_of::<u32>() * mask.count_ones() as usize);
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::simd) fn run(
        x: &[f32],
        bound: f32,
        base: u32,
        indices: &mut [u32],
        values: &mut [f32],
    ) -> usize {
        let mut to = Front::of(x.len(), indices, values);
        let limit = _mm256_set1_ps(bound);
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
        let (groups, rest) = x.as_chunks::<GROUP>();
        for (g, group) in groups.iter().enumerate() {
            let mut v = [_mm256_set1_ps(0.0); 8];
            let mut masks = [0u8; 8];
            let mut any = 0;
            for j in 0..8 {
                // SAFETY: a group is 64 elements, of which these are 8 j to 8 j + 7.
                v[j] = unsafe { _mm256_loadu_ps(group.as_ptr().add(8 * j)) };
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(_mm256_and_ps(v[j], magnitude), limit);
                masks[j] = _mm256_movemask_ps(above) as u8;
                any |= masks[j];
            }
            if any == 0 {
                continue;
            }
            for j in 0..8 {
                let at = base + (g * GROUP + 8 * j) as u32;
                // SAFETY: vectors follow one another.
                unsafe { store(v[j], masks[j], at, &mut to) };
            }
        }
        let (at, count) = (base + (x.len() - rest.len()) as u32, to.count());
        count + scalar(rest, bound, at, &mut indices[count..], &mut values[count..])
    }
}
