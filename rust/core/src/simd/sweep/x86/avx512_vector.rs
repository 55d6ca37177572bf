//! Sixteen float32 in one register.

use super::fetch;
use crate::simd::sweep::vector::{HELD, Vector};
use crate::simd::{LANES, above, moments, normal};
use half::{bf16, f16};
use std::arch::x86_64::{
    __m256, __m512, __m512d, __m512i, _CMP_GT_OQ, _mm256_loadu_si256, _mm512_abs_ps,
    _mm512_add_epi32, _mm512_add_pd, _mm512_add_ps, _mm512_castps_si512, _mm512_castps256_ps512,
    _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepu16_epi32,
    _mm512_cvtpd_ps, _mm512_cvtph_ps, _mm512_cvtps_pd, _mm512_div_ps, _mm512_extractf32x8_ps,
    _mm512_insertf32x8, _mm512_loadu_pd, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_epu32,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_pd, _mm512_mul_ps, _mm512_permutex2var_epi16,
    _mm512_reduce_max_epu32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_sqrt_ps, _mm512_storeu_pd, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_stream_ps, _mm512_stream_si512, _mm512_sub_ps,
};

/// See [`Vector`]: needs AVX-512 F, BW and DQ.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

/// The registers of the moments: sums and sums of squares.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    sum: [__m512d; 2],
    sum_sq: [__m512d; 2],
    count: u64,
}

/// Where the upper halves are in a pair of registers.
static UPPER: [u16; 2 * LANES] = {
    let mut upper = [0; 2 * LANES];
    let mut i = 0;
    while i < upper.len() {
        upper[i] = 2 * i as u16 + 1;
        i += 1;
    }
    upper
};

// SAFETY of all methods: features and pointers are the caller's promise, see the trait.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx512 {
    type Sums = Sums;
    type Peak = __m512i;
    type Hits = [u16; HELD];
    const HOLDS: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn load_f64(from: *const f64) -> Self {
        unsafe {
            let low = _mm512_cvtpd_ps(_mm512_loadu_pd(from));
            let high = _mm512_cvtpd_ps(_mm512_loadu_pd(from.add(8)));
            Self(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe { _mm512_stream_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn round(pair: [Self; 2], draws: [[u32; LANES]; 2], to: *mut bf16, streams: bool) {
        unsafe {
            let mut sums = [_mm512_setzero_si512(); 2];
            for (i, sums) in sums.iter_mut().enumerate() {
                let draws = _mm512_loadu_si512(draws[i].as_ptr().cast());
                *sums = _mm512_add_epi32(_mm512_castps_si512(pair[i].0), draws);
            }
            let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
            let halves = _mm512_permutex2var_epi16(sums[0], upper, sums[1]);
            if streams {
                _mm512_stream_si512(to.cast(), halves);
            } else {
                _mm512_storeu_si512(to.cast(), halves);
            }
        }
    }

    #[inline(always)]
    fn fetch<T>(from: *const T, len: usize) {
        fetch(from, len);
    }

    #[inline(always)]
    unsafe fn add_scaled(self, residual: Self, decay: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, _mm512_mul_ps(decay.0, residual.0))) }
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn over(self, other: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn root(self) -> Self {
        unsafe { Self(_mm512_sqrt_ps(self.0)) }
    }

    #[inline(always)]
    unsafe fn at_most(self, other: Self) -> Self {
        // The second operand is the result where one is no number.
        unsafe { Self(_mm512_min_ps(other.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn at_least(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn magnitude(self) -> Self {
        unsafe { Self(_mm512_abs_ps(self.0)) }
    }

    #[inline(always)]
    unsafe fn normal_or_zero(self) -> Self {
        unsafe { Self(normal::avx512(self.0)) }
    }

    #[inline(always)]
    unsafe fn no_peak() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn no_hits() -> [u16; HELD] {
        [0; HELD]
    }

    #[inline(always)]
    unsafe fn look(self, j: usize, bound: Self, hits: &mut [u16; HELD], peak: &mut __m512i) {
        unsafe {
            let magnitudes = _mm512_abs_ps(self.0);
            *peak = _mm512_max_epu32(*peak, _mm512_castps_si512(magnitudes));
            hits[j] = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitudes, bound.0);
        }
    }

    #[inline(always)]
    unsafe fn any(_bound: Self, hits: &[u16; HELD], _peak: &mut __m512i) -> bool {
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
        unsafe { above::x86::avx512::store(self.0, hits[j], at, to) }
    }

    #[inline(always)]
    unsafe fn highest(peak: __m512i) -> u32 {
        unsafe { _mm512_reduce_max_epu32(peak) }
    }

    #[inline(always)]
    unsafe fn load_sums(lanes: &moments::Lanes) -> Sums {
        let (sum, sum_sq) = lanes.as_ptrs();
        unsafe {
            Sums {
                sum: [_mm512_loadu_pd(sum), _mm512_loadu_pd(sum.add(8))],
                sum_sq: [_mm512_loadu_pd(sum_sq), _mm512_loadu_pd(sum_sq.add(8))],
                count: 0,
            }
        }
    }

    #[inline(always)]
    unsafe fn add_to(self, location: Self, sums: &mut Sums) {
        unsafe {
            let difference = _mm512_sub_ps(_mm512_abs_ps(self.0), location.0);
            let e = _mm512_max_ps(difference, _mm512_setzero_ps());
            let halves: [__m256; 2] = [_mm512_castps512_ps256(e), _mm512_extractf32x8_ps::<1>(e)];
            for (i, half) in halves.into_iter().enumerate() {
                let wide = _mm512_cvtps_pd(half);
                sums.sum[i] = _mm512_add_pd(sums.sum[i], wide);
                sums.sum_sq[i] = _mm512_add_pd(sums.sum_sq[i], _mm512_mul_pd(wide, wide));
            }
            let mask = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(difference, _mm512_setzero_ps());
            sums.count += u64::from(mask.count_ones());
        }
    }

    #[inline(always)]
    unsafe fn store_sums(sums: Sums, lanes: &mut moments::Lanes) {
        lanes.add_count(sums.count);
        let (sum, sum_sq) = lanes.as_mut_ptrs();
        unsafe {
            for i in 0..2 {
                _mm512_storeu_pd(sum.add(8 * i), sums.sum[i]);
                _mm512_storeu_pd(sum_sq.add(8 * i), sums.sum_sq[i]);
            }
        }
    }
}
