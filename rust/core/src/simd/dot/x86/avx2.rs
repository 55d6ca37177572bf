//! Sixteen float32 in two registers.

use super::{AHEAD, avx2, fetch, level, sums_by};
use crate::simd::LANES;
use crate::simd::dot::activations::{self, Rounded};
use crate::simd::dot::lanes::Values;
use crate::simd::dot::run::{self, Rows, Task, Vectors};
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_add_epi32, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_si128, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi16, _mm256_cvtepu8_epi32, _mm256_extracti128_si256, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_or_si256, _mm256_permutevar8x32_ps, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_slli_epi16,
    _mm256_slli_epi32, _mm256_srai_epi16, _mm256_srli_epi16, _mm256_srlv_epi32, _mm256_storeu_ps,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

/// Half the lanes, for a pass over a row each. A step has no more than eleven significant bits and a code eight, so
/// that their product is exact, and a fused sum is that of the other levels.
#[derive(Clone, Copy)]
struct Eight(__m256);

/// All lanes.
#[derive(Clone, Copy)]
struct Sixteen([Eight; 2]);

/// `base + step * code`.
#[inline(always)]
unsafe fn value([step, base]: [__m256; 2], codes: __m256i) -> __m256 {
    // SAFETY: features are the caller's promise.
    unsafe { _mm256_fmadd_ps(step, _mm256_cvtepi32_ps(codes), base) }
}

/// The numbers of lanes.
#[inline(always)]
unsafe fn numbers() -> __m256i {
    // SAFETY: AVX is the caller's promise.
    unsafe { _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) }
}

/// Four bytes in each lane.
#[inline(always)]
unsafe fn broadcast(codes: *const u8) -> __m256i {
    // SAFETY: features and pointer are the caller's promise.
    unsafe { _mm256_set1_epi32(codes.cast::<i32>().read_unaligned()) }
}

// SAFETY of all methods: features and pointers are the caller's promise, see the trait.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Values for Eight {
    const WIDTH: usize = 8;
    /// The values of all codes of two bits, twice; or step and base.
    type Scale = [__m256; 2];

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, _mm256_mul_ps(a.0, b.0))) }
    }

    #[inline(always)]
    unsafe fn scale<const W: usize>(scale: *const f32) -> Self::Scale {
        unsafe {
            if W == 32 {
                return [_mm256_setzero_ps(); 2];
            }
            let scale = [_mm256_set1_ps(*scale), _mm256_set1_ps(*scale.add(1))];
            if W != 2 {
                return scale;
            }
            let codes = _mm256_and_si256(numbers(), _mm256_set1_epi32(3));
            [value(scale, codes); 2]
        }
    }

    #[inline(always)]
    unsafe fn values<const W: usize>(codes: *const u8, part: usize, scale: Self::Scale) -> Self {
        unsafe {
            let codes = codes.add(part * W / 8);
            let numbers = match W {
                2 => {
                    // A lane takes a value by the lowest three bits of what is there. Sixteen codes
                    // are four bytes: there are no more behind the second half.
                    let first = _mm256_slli_epi32::<1>(numbers());
                    let shifts = _mm256_add_epi32(first, _mm256_set1_epi32(2 * part as i32));
                    let all = broadcast(codes.sub(part * W / 8));
                    let indices = _mm256_srlv_epi32(all, shifts);
                    return Self(_mm256_permutevar8x32_ps(scale[0], indices));
                }
                4 => {
                    let shifts = _mm256_slli_epi32::<2>(numbers());
                    let shifted = _mm256_srlv_epi32(broadcast(codes), shifts);
                    _mm256_and_si256(shifted, _mm256_set1_epi32(15))
                }
                8 => _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast())),
                _ => return Self::load(codes.cast()),
            };
            Self(value(scale, numbers))
        }
    }

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from);
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Values for Sixteen {
    const WIDTH: usize = LANES;
    type Scale = [__m256; 2];

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self([Eight::load(from), Eight::load(from.add(8))]) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            self.0[0].store(to);
            self.0[1].store(to.add(8));
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        unsafe {
            Self([self.0[0].add_product(a.0[0], b.0[0]), self.0[1].add_product(a.0[1], b.0[1])])
        }
    }

    #[inline(always)]
    unsafe fn scale<const W: usize>(scale: *const f32) -> Self::Scale {
        unsafe { Eight::scale::<W>(scale) }
    }

    #[inline(always)]
    unsafe fn values<const W: usize>(codes: *const u8, _: usize, scale: Self::Scale) -> Self {
        unsafe { Self([Eight::values::<W>(codes, 0, scale), Eight::values::<W>(codes, 8, scale)]) }
    }

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from);
    }
}

level!(
    "avx2,bmi1,bmi2,f16c,fma,lzcnt,popcnt",
    Sixteen,
    [8: 1 Eight, 4: 2 Eight, 2: 2 Eight, 1: 1 Sixteen]
);

/// Codes are taken in the order in which they are.
pub(in crate::simd) use crate::simd::dot::scalar::arrange;

/// 32 codes, one a byte.
#[inline(always)]
unsafe fn half<const W: usize>(codes: *const u8) -> __m256i {
    // SAFETY: features and pointer are the caller's promise.
    unsafe {
        match W {
            2 => {
                let four = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()));
                let two = _mm256_or_si256(four, _mm256_slli_epi32::<12>(four));
                let one = _mm256_or_si256(two, _mm256_slli_epi32::<6>(two));
                _mm256_and_si256(one, _mm256_set1_epi8(3))
            }
            4 => {
                let two = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast()));
                let one = _mm256_or_si256(two, _mm256_slli_epi16::<4>(two));
                _mm256_and_si256(one, _mm256_set1_epi8(15))
            }
            _ => _mm256_loadu_si256(codes.cast()),
        }
    }
}

/// The codes of a run; of one of 32 the same twice.
#[inline(always)]
pub(super) unsafe fn bytes<const W: usize, const RUN: usize>(codes: *const u8) -> [__m256i; 2] {
    // SAFETY: features and pointer are the caller's promise.
    unsafe { [half::<W>(codes), half::<W>(codes.add((RUN - 32) * W / 8))] }
}

/// The same of 32 codes of eight bits, two products of which do not fit in 16: even and odd ones apart.
#[inline(always)]
unsafe fn wide(codes: __m256i, x: __m256i) -> __m256i {
    // SAFETY: AVX2 is the caller's promise.
    unsafe {
        let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xFF));
        let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let (odd, x_odd) = (_mm256_srli_epi16::<8>(codes), _mm256_srai_epi16::<8>(x));
        _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd))
    }
}

/// Sums of a run in eight lanes.
#[inline(always)]
unsafe fn eight<const W: usize, const RUN: usize>(codes: [__m256i; 2], x: *const i8) -> __m256i {
    // SAFETY: features and pointers are the caller's promise.
    unsafe {
        let x = [_mm256_loadu_si256(x.cast()), _mm256_loadu_si256(x.add(RUN - 32).cast())];
        if W < 8 {
            // At most 4 * 15 * 127.
            let one = _mm256_maddubs_epi16(codes[0], x[0]);
            let both = _mm256_add_epi16(one, _mm256_maddubs_epi16(codes[1], x[1]));
            return _mm256_madd_epi16(if RUN == 32 { one } else { both }, _mm256_set1_epi16(1));
        }
        // Two products of a byte do not fit in 16 bits: even and odd ones apart.
        let one = wide(codes[0], x[0]);
        if RUN == 32 { one } else { _mm256_add_epi32(one, wide(codes[1], x[1])) }
    }
}

/// Sums of neighbours of two vectors, in turn.
#[inline(always)]
unsafe fn pair(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: AVX2 is the caller's promise.
    unsafe { _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)) }
}

/// Four sums of four vectors of eight lanes.
#[inline(always)]
pub(super) unsafe fn four(runs: [__m256i; 4]) -> __m128i {
    // SAFETY: AVX2 is the caller's promise.
    unsafe {
        let (a, b) = (pair(runs[0], runs[1]), pair(runs[2], runs[3]));
        let all = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all))
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,f16c,lzcnt,popcnt")]
pub(in crate::simd) fn sums(
    codes: &[u8],
    width: u32,
    x: Rounded<'_>,
    run: usize,
    sums: &mut [i32],
) {
    sums_by!((codes, width, x, run, sums), bytes, eight);
}
