//! Adding sixteen lanes takes as many instructions as reading a group of 32 values, unless whole
//! vectors are added: the compiler takes the lanes of short groups one by one.

use std::arch::x86_64::{
    __m256d, __m256i, _CMP_LT_OQ, _mm_add_pd, _mm_add_sd, _mm_cvtsd_f64, _mm_loadu_ps,
    _mm_unpackhi_pd, _mm256_add_pd, _mm256_and_pd, _mm256_andnot_pd, _mm256_castpd_si256,
    _mm256_castpd256_pd128, _mm256_cmp_pd, _mm256_cvtps_pd, _mm256_extractf128_pd,
    _mm256_max_epu32, _mm256_mul_pd, _mm256_setzero_pd, _mm256_setzero_si256, _mm256_storeu_si256,
    _mm256_sub_epi64,
};

use super::Summary;
use crate::simd::peak::x86::{larger, largest};

/// Sixteen lanes of float64.
type Lanes = [__m256d; 4];

/// Running sums over one group.
struct Sums {
    above: Lanes,
    below: Lanes,
    squares: Lanes,
    negatives: __m256i,
    peaks: __m256i,
}

impl Sums {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new() -> Self {
        let zeros = [_mm256_setzero_pd(); 4];
        let none = _mm256_setzero_si256();
        Self { above: zeros, below: zeros, squares: zeros, negatives: none, peaks: none }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn add<const SIDES: bool, const SQUARES: bool>(&mut self, x: &[f32; 16]) {
        for (i, four) in x.as_chunks::<4>().0.iter().enumerate() {
            // SAFETY: four values are a vector.
            let wide = _mm256_cvtps_pd(unsafe { _mm_loadu_ps(four.as_ptr()) });
            if SIDES {
                let is_below = _mm256_cmp_pd::<_CMP_LT_OQ>(wide, _mm256_setzero_pd());
                self.above[i] = _mm256_add_pd(self.above[i], _mm256_andnot_pd(is_below, wide));
                self.below[i] = _mm256_add_pd(self.below[i], _mm256_and_pd(is_below, wide));
                // True is minus one.
                self.negatives = _mm256_sub_epi64(self.negatives, _mm256_castpd_si256(is_below));
            }
            if SQUARES {
                self.squares[i] = _mm256_add_pd(self.squares[i], _mm256_mul_pd(wide, wide));
            }
        }
        self.peaks = _mm256_max_epu32(self.peaks, larger(x));
    }
}

/// As [`crate::simd::reduce`], in the same order.
#[target_feature(enable = "avx2")]
#[inline]
fn reduce([a, b, c, d]: Lanes) -> f64 {
    let four = _mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d));
    let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
    _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn total(lanes: __m256i) -> u64 {
    let mut counts = [0_u64; 4];
    // SAFETY: four counts are a vector.
    unsafe { _mm256_storeu_si256(counts.as_mut_ptr().cast(), lanes) };
    counts.iter().sum()
}

#[target_feature(enable = "avx2")]
pub(super) fn of_groups<const SIDES: bool, const SQUARES: bool>(
    x: &[f32],
    len: usize,
    out: &mut [Summary],
) {
    for (out, group) in out.iter_mut().zip(x.chunks(len)) {
        let mut sums = Sums::new();
        let (whole, rest) = group.as_chunks::<16>();
        for x in whole {
            sums.add::<SIDES, SQUARES>(x);
        }
        if !rest.is_empty() {
            // Zeros change no sum.
            sums.add::<SIDES, SQUARES>(&crate::simd::padded(rest));
        }
        *out = Summary {
            count: group.len() as u64,
            negatives: if SIDES { total(sums.negatives) } else { 0 },
            above: if SIDES { reduce(sums.above) } else { 0.0 },
            below: if SIDES { reduce(sums.below) } else { 0.0 },
            squares: if SQUARES { reduce(sums.squares) } else { 0.0 },
            peak: largest(sums.peaks),
        };
    }
}
