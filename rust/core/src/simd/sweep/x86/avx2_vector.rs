//! Sixteen float32 in two registers.

use super::fetch;
use crate::simd::sweep::vector::{HELD, Vector};
use crate::simd::{LANES, above, moments, normal};
use half::{bf16, f16};
use std::arch::x86_64::{
    __m256, __m256d, __m256i, _CMP_GT_OQ, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_max_epu32,
    _mm_shuffle_epi32, _mm256_add_epi32, _mm256_add_pd, _mm256_add_ps, _mm256_and_ps,
    _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_cvtpd_ps, _mm256_cvtph_ps, _mm256_cvtps_pd,
    _mm256_div_ps, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_loadu_pd,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_epu32, _mm256_max_ps, _mm256_min_ps,
    _mm256_movemask_ps, _mm256_mul_pd, _mm256_mul_ps, _mm256_packus_epi32,
    _mm256_permute4x64_epi64, _mm256_set_m128, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_pd, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_sqrt_ps,
    _mm256_srli_epi32, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_stream_ps,
    _mm256_stream_si256, _mm256_sub_ps,
};

/// See [`Vector`]: needs AVX2 and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2([__m256; 2]);

/// The registers of the moments: sums and sums of squares.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    sum: [__m256d; 4],
    sum_sq: [__m256d; 4],
    count: u64,
}

/// The magnitudes of eight lanes.
#[inline(always)]
unsafe fn magnitudes(x: __m256) -> __m256 {
    // SAFETY: AVX2 is the caller's promise.
    unsafe { _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff))) }
}

/// Eight bfloat16 as float32.
#[inline(always)]
unsafe fn upper(from: *const bf16) -> __m256 {
    // SAFETY: AVX2 and eight elements are the caller's promise.
    unsafe {
        let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
    }
}

// SAFETY of all methods: features and pointers are the caller's promise, see the trait. There are no
// closures in them: those would not be inlined into the function that has the features.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx2 {
    type Sums = Sums;
    type Peak = [__m256i; 2];
    type Hits = [u16; HELD];
    const HOLDS: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self([_mm256_set1_ps(value); 2]) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self([_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]) }
    }

    #[inline(always)]
    unsafe fn load_f64(from: *const f64) -> Self {
        unsafe {
            let mut pair = [_mm256_setzero_ps(); 2];
            for (i, eight) in pair.iter_mut().enumerate() {
                let low = _mm256_cvtpd_ps(_mm256_loadu_pd(from.add(8 * i)));
                let high = _mm256_cvtpd_ps(_mm256_loadu_pd(from.add(8 * i + 4)));
                *eight = _mm256_set_m128(high, low);
            }
            Self(pair)
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        unsafe {
            let low = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
            Self([low, _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))])
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        unsafe { Self([upper(from), upper(from.add(8))]) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0[0]);
            _mm256_storeu_ps(to.add(8), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            _mm256_stream_ps(to, self.0[0]);
            _mm256_stream_ps(to.add(8), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn round(pair: [Self; 2], draws: [[u32; LANES]; 2], to: *mut bf16, streams: bool) {
        for (i, (vector, draws)) in pair.into_iter().zip(&draws).enumerate() {
            unsafe {
                let mut upper = [_mm256_setzero_si256(); 2];
                for (i, upper) in upper.iter_mut().enumerate() {
                    let draws = _mm256_loadu_si256(draws.as_ptr().add(8 * i).cast());
                    let sums = _mm256_add_epi32(_mm256_castps_si256(vector.0[i]), draws);
                    *upper = _mm256_srli_epi32::<16>(sums);
                }
                // Halves of either are packed in turn.
                let packed = _mm256_packus_epi32(upper[0], upper[1]);
                let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
                let to = to.add(LANES * i).cast();
                if streams {
                    _mm256_stream_si256(to, halves);
                } else {
                    _mm256_storeu_si256(to, halves);
                }
            }
        }
    }

    #[inline(always)]
    fn fetch<T>(from: *const T, len: usize) {
        fetch(from, len);
    }

    #[inline(always)]
    unsafe fn add_scaled(self, residual: Self, decay: Self) -> Self {
        unsafe {
            let low = _mm256_mul_ps(decay.0[0], residual.0[0]);
            let high = _mm256_mul_ps(decay.0[1], residual.0[1]);
            Self([_mm256_add_ps(self.0[0], low), _mm256_add_ps(self.0[1], high)])
        }
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        unsafe { Self([_mm256_mul_ps(a, c), _mm256_mul_ps(b, d)]) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        unsafe { Self([_mm256_add_ps(a, c), _mm256_add_ps(b, d)]) }
    }

    #[inline(always)]
    unsafe fn over(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        unsafe { Self([_mm256_div_ps(a, c), _mm256_div_ps(b, d)]) }
    }

    #[inline(always)]
    unsafe fn root(self) -> Self {
        let [a, b] = self.0;
        unsafe { Self([_mm256_sqrt_ps(a), _mm256_sqrt_ps(b)]) }
    }

    #[inline(always)]
    unsafe fn at_most(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        // The second operand is the result where one is no number.
        unsafe { Self([_mm256_min_ps(c, a), _mm256_min_ps(d, b)]) }
    }

    #[inline(always)]
    unsafe fn at_least(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        unsafe { Self([_mm256_max_ps(a, c), _mm256_max_ps(b, d)]) }
    }

    #[inline(always)]
    unsafe fn magnitude(self) -> Self {
        let [a, b] = self.0;
        unsafe { Self([magnitudes(a), magnitudes(b)]) }
    }

    #[inline(always)]
    unsafe fn normal_or_zero(self) -> Self {
        let [a, b] = self.0;
        unsafe { Self([normal::avx2(a), normal::avx2(b)]) }
    }

    #[inline(always)]
    unsafe fn no_peak() -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn no_hits() -> [u16; HELD] {
        [0; HELD]
    }

    #[inline(always)]
    unsafe fn look(self, j: usize, bound: Self, hits: &mut [u16; HELD], peak: &mut [__m256i; 2]) {
        let mut mask = [0; 2];
        unsafe {
            for i in 0..2 {
                let magnitudes = magnitudes(self.0[i]);
                peak[i] = _mm256_max_epu32(peak[i], _mm256_castps_si256(magnitudes));
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(magnitudes, bound.0[i]);
                mask[i] = _mm256_movemask_ps(above) as u16;
            }
        }
        hits[j] = mask[0] | mask[1] << 8;
    }

    #[inline(always)]
    unsafe fn any(_bound: Self, hits: &[u16; HELD], _peak: &mut [__m256i; 2]) -> bool {
        hits[0] | hits[1] | hits[2] | hits[3] != 0
    }

    #[inline(always)]
    unsafe fn compact(
        self,
        j: usize,
        _bound: Self,
        hits: &[u16; HELD],
        at: u32,
        to: &mut above::Front,
    ) {
        unsafe {
            above::x86::avx2::store(self.0[0], hits[j] as u8, at, to);
            above::x86::avx2::store(self.0[1], (hits[j] >> 8) as u8, at + 8, to);
        }
    }

    #[inline(always)]
    unsafe fn highest(peak: [__m256i; 2]) -> u32 {
        unsafe {
            let eight = _mm256_max_epu32(peak[0], peak[1]);
            let high = _mm256_extracti128_si256::<1>(eight);
            let four = _mm_max_epu32(_mm256_castsi256_si128(eight), high);
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two));
            _mm_cvtsi128_si32(one) as u32
        }
    }

    #[inline(always)]
    unsafe fn load_sums(lanes: &moments::Lanes) -> Sums {
        let (sum, sum_sq) = lanes.as_ptrs();
        unsafe {
            let mut sums =
                Sums { sum: [_mm256_setzero_pd(); 4], sum_sq: [_mm256_setzero_pd(); 4], count: 0 };
            for i in 0..4 {
                sums.sum[i] = _mm256_loadu_pd(sum.add(4 * i));
                sums.sum_sq[i] = _mm256_loadu_pd(sum_sq.add(4 * i));
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn add_to(self, location: Self, sums: &mut Sums) {
        let mut mask = 0_u16;
        unsafe {
            let zero = _mm256_set1_ps(0.0);
            for i in 0..2 {
                let difference = _mm256_sub_ps(magnitudes(self.0[i]), location.0[i]);
                let e = _mm256_max_ps(difference, zero);
                let quarters = [_mm256_castps256_ps128(e), _mm256_extractf128_ps::<1>(e)];
                for (j, quarter) in quarters.into_iter().enumerate() {
                    let (at, wide) = (2 * i + j, _mm256_cvtps_pd(quarter));
                    sums.sum[at] = _mm256_add_pd(sums.sum[at], wide);
                    sums.sum_sq[at] = _mm256_add_pd(sums.sum_sq[at], _mm256_mul_pd(wide, wide));
                }
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(difference, zero);
                mask |= (_mm256_movemask_ps(above) as u16) << (8 * i);
            }
        }
        sums.count += u64::from(mask.count_ones());
    }

    #[inline(always)]
    unsafe fn store_sums(sums: Sums, lanes: &mut moments::Lanes) {
        lanes.add_count(sums.count);
        let (sum, sum_sq) = lanes.as_mut_ptrs();
        unsafe {
            for i in 0..4 {
                _mm256_storeu_pd(sum.add(4 * i), sums.sum[i]);
                _mm256_storeu_pd(sum_sq.add(4 * i), sums.sum_sq[i]);
            }
        }
    }
}
