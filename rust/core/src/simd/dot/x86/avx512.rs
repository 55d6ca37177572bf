//! Sixteen float32 in one register.

use super::{AHEAD, avx2, fetch, level, sums_by};
use crate::simd::LANES;
use crate::simd::dot::activations::{self, Rounded};
use crate::simd::dot::lanes::Values;
use crate::simd::dot::run::{self, Rows, Task, Vectors};
use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm_loadu_si128, _mm256_dpbusd_epi32, _mm256_loadu_si256,
    _mm256_setzero_si256, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_ps,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_ps,
    _mm512_srlv_epi32, _mm512_storeu_ps,
};

/// Products of steps and codes are exact, and so a fused sum is the sum of both.
#[derive(Clone, Copy)]
struct Avx512(__m512);

/// The numbers of lanes.
#[inline(always)]
unsafe fn numbers() -> __m512i {
    // SAFETY: AVX-512 F is the caller's promise.
    unsafe { _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) }
}

// SAFETY of all methods: features and pointers are the caller's promise, see the trait.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Values for Avx512 {
    const WIDTH: usize = LANES;
    /// The values of all codes of two or four bits, those of two bits four times; or step and base.
    type Scale = [__m512; 2];

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, _mm512_mul_ps(a.0, b.0))) }
    }

    #[inline(always)]
    unsafe fn scale<const W: usize>(scale: *const f32) -> Self::Scale {
        unsafe {
            if W == 32 {
                return [_mm512_setzero_ps(); 2];
            }
            let scale = [_mm512_set1_ps(*scale), _mm512_set1_ps(*scale.add(1))];
            if W == 8 {
                return scale;
            }
            let codes = _mm512_and_si512(numbers(), _mm512_set1_epi32((1 << W) - 1));
            [_mm512_fmadd_ps(scale[0], _mm512_cvtepi32_ps(codes), scale[1]); 2]
        }
    }

    #[inline(always)]
    unsafe fn values<const W: usize>(codes: *const u8, _: usize, scale: Self::Scale) -> Self {
        // A lane takes a value by the lowest four bits of what is there.
        unsafe {
            Self(match W {
                2 => {
                    let all = _mm512_set1_epi32(codes.cast::<i32>().read_unaligned());
                    let shifts = _mm512_add_epi32(numbers(), numbers());
                    _mm512_permutexvar_ps(_mm512_srlv_epi32(all, shifts), scale[0])
                }
                4 => {
                    // The first eight codes in even lanes, the others in odd ones.
                    let all = _mm512_set1_epi64(codes.cast::<i64>().read_unaligned());
                    let shifts =
                        _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
                    _mm512_permutexvar_ps(_mm512_srlv_epi32(all, shifts), scale[0])
                }
                8 => {
                    let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
                    _mm512_fmadd_ps(scale[0], _mm512_cvtepi32_ps(codes), scale[1])
                }
                _ => _mm512_loadu_ps(codes.cast()),
            })
        }
    }

    #[inline(always)]
    unsafe fn reorder<const W: usize>(self) -> Self {
        if W != 4 {
            return self;
        }
        unsafe {
            let from = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
            Self(_mm512_permutexvar_ps(from, self.0))
        }
    }

    #[inline(always)]
    unsafe fn restore<const W: usize>(self) -> Self {
        if W != 4 {
            return self;
        }
        unsafe {
            let from = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            Self(_mm512_permutexvar_ps(from, self.0))
        }
    }

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from);
    }
}

level!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,f16c,lzcnt,popcnt",
    Avx512,
    [8: 2 Avx512, 4: 4 Avx512, 2: 4 Avx512, 1: 4 Avx512]
);

/// Sums of a run in eight lanes.
#[inline(always)]
unsafe fn eight<const W: usize, const RUN: usize>(codes: [__m256i; 2], x: *const i8) -> __m256i {
    // SAFETY: features and pointers are the caller's promise.
    unsafe {
        let x = [_mm256_loadu_si256(x.cast()), _mm256_loadu_si256(x.add(RUN - 32).cast())];
        let one = _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes[0], x[0]);
        if RUN == 32 { one } else { _mm256_dpbusd_epi32(one, codes[1], x[1]) }
    }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,bmi1,bmi2,f16c,lzcnt,popcnt"
)]
fn vnni(codes: &[u8], width: u32, x: Rounded<'_>, run: usize, sums: &mut [i32]) {
    use avx2::bytes;
    sums_by!((codes, width, x, run, sums), bytes, eight);
}

/// By the instructions for it, where the CPU has them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,f16c,lzcnt,popcnt")]
pub(in crate::simd) fn sums(
    codes: &[u8],
    width: u32,
    x: Rounded<'_>,
    run: usize,
    sums: &mut [i32],
) {
    if is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the CPU has them.
        unsafe { vnni(codes, width, x, run, sums) };
    } else {
        avx2::sums(codes, width, x, run, sums);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,f16c,lzcnt,popcnt")]
pub(in crate::simd) fn arrange(x: &[f32], width: u32, out: &mut [f32]) {
    // SAFETY: this function has the features of the vector.
    unsafe { run::arrange::<Avx512>(x, width, out) };
}
