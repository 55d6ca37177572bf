//! NEON: sixteen float32 in four registers, and products of bytes by `sdot` where the CPU has it.
//!
//! Values of codes of two or four bits come from tables: of the sixteen values of a block, one table has
//! the first bytes, another the second ones, and so on; what is looked up is put together again.

#![allow(clippy::needless_range_loop, reason = "vectors are kept by their numbers")]

use super::activations::{self, Rounded};
use super::lanes::Values;
use super::run::{self, Rows, Task, Vectors};
use crate::simd::LANES;
use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, uint8x16x4_t, uint16x8_t, vaddq_f32, vaddq_s16,
    vand_u8, vandq_u8, vcombine_u8, vcvtq_f32_u32, vdup_n_u8, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8,
    vdupq_n_u32, vget_low_s8, vget_low_s16, vget_low_u8, vget_low_u16, vld1_u8, vld1q_f32,
    vld1q_s8, vld1q_u8, vld4q_u8, vmlal_high_s16, vmlal_s16, vmovl_high_s8, vmovl_high_u8,
    vmovl_high_u16, vmovl_s8, vmovl_u8, vmovl_u16, vmull_high_s8, vmull_s8, vmulq_f32, vpadalq_s16,
    vpaddq_s32, vqtbl1q_u8, vreinterpretq_f32_u16, vreinterpretq_s8_u8, vreinterpretq_s16_u16,
    vreinterpretq_u8_u32, vreinterpretq_u16_u8, vshlq_u8, vshr_n_u8, vshrq_n_u8, vst1q_f32,
    vst1q_s32, vzip1q_u8, vzip1q_u16, vzip2q_u8, vzip2q_u16,
};

#[derive(Clone, Copy)]
struct Neon([float32x4_t; 4]);

/// What the codes of a block become values by: of all values of few bits the bytes, or step and base.
#[derive(Clone, Copy)]
struct Scale {
    table: uint8x16x4_t,
    pair: [float32x4_t; 2],
}

/// The numbers of the lowest codes.
static NUMBERS: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Which of four bytes each of sixteen codes of two bits is in, and how far it is to be shifted.
static BYTES: [u8; LANES] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
static SHIFTS: [i8; LANES] = [0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6];

/// Four values of four numbers each.
#[inline(always)]
unsafe fn each(of: impl Fn(usize) -> float32x4_t) -> Neon {
    Neon(std::array::from_fn(of))
}

// SAFETY of all methods: pointers are the caller's promise, see the trait.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Values for Neon {
    const WIDTH: usize = LANES;
    type Scale = Scale;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { each(|i| vld1q_f32(from.add(4 * i))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, four) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(to.add(4 * i), four) };
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        unsafe { each(|i| vaddq_f32(self.0[i], vmulq_f32(a.0[i], b.0[i]))) }
    }

    #[inline(always)]
    unsafe fn scale<const W: usize>(scale: *const f32) -> Self::Scale {
        unsafe {
            let nothing = vdupq_n_u8(0);
            let mut table = uint8x16x4_t(nothing, nothing, nothing, nothing);
            if W == 32 {
                return Scale { table, pair: [vdupq_n_f32(0.0); 2] };
            }
            let pair @ [step, base] = [vdupq_n_f32(*scale), vdupq_n_f32(*scale.add(1))];
            if W < 8 {
                let numbers = Self::load(NUMBERS.as_ptr());
                let mut values = [0.0; LANES];
                each(|i| vaddq_f32(base, vmulq_f32(step, numbers.0[i]))).store(values.as_mut_ptr());
                table = vld4q_u8(values.as_ptr().cast());
            }
            Scale { table, pair }
        }
    }

    #[inline(always)]
    unsafe fn values<const W: usize>(codes: *const u8, _: usize, scale: Self::Scale) -> Self {
        unsafe {
            match W {
                2 => looked_up(pairs(codes), scale.table),
                4 => looked_up(nibbles(codes), scale.table),
                8 => {
                    let (codes, [step, base]) = (wide(vld1q_u8(codes)), scale.pair);
                    let codes = codes.map(|x| [vmovl_u16(vget_low_u16(x)), vmovl_high_u16(x)]);
                    each(|i| {
                        let codes = vcvtq_f32_u32(codes[i / 2][i % 2]);
                        vaddq_f32(base, vmulq_f32(step, codes))
                    })
                }
                _ => Self::load(codes.cast()),
            }
        }
    }
}

/// Values by the bytes of all of them.
#[inline(always)]
unsafe fn looked_up(codes: uint8x16_t, table: uint8x16x4_t) -> Neon {
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let bytes = [table.0, table.1, table.2, table.3].map(|bytes| vqtbl1q_u8(bytes, codes));
        let halves =
            |a, b| [vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip2q_u8(a, b))];
        let (low, high) = (halves(bytes[0], bytes[1]), halves(bytes[2], bytes[3]));
        each(|i| {
            let (low, high) = (low[i / 2], high[i / 2]);
            let whole = if i % 2 == 0 { vzip1q_u16(low, high) } else { vzip2q_u16(low, high) };
            vreinterpretq_f32_u16(whole)
        })
    }
}

/// Sixteen codes of two bits, one a byte.
#[inline(always)]
unsafe fn pairs(codes: *const u8) -> uint8x16_t {
    // SAFETY: there are four bytes; NEON is part of the target's baseline.
    unsafe {
        let all = vreinterpretq_u8_u32(vdupq_n_u32(codes.cast::<u32>().read_unaligned()));
        let bytes = vqtbl1q_u8(all, vld1q_u8(BYTES.as_ptr()));
        vandq_u8(vshlq_u8(bytes, vld1q_s8(SHIFTS.as_ptr())), vdupq_n_u8(3))
    }
}

/// Sixteen codes of four bits, one a byte.
#[inline(always)]
unsafe fn nibbles(codes: *const u8) -> uint8x16_t {
    // SAFETY: there are eight bytes; NEON is part of the target's baseline.
    unsafe {
        let both = vld1_u8(codes);
        let (low, high) = (vand_u8(both, vdup_n_u8(15)), vshr_n_u8::<4>(both));
        vzip1q_u8(vcombine_u8(low, low), vcombine_u8(high, high))
    }
}

/// Bytes in 16 bits each.
#[inline(always)]
unsafe fn wide(bytes: uint8x16_t) -> [uint16x8_t; 2] {
    // SAFETY: NEON is part of the target's baseline.
    unsafe { [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)] }
}

pub(in crate::simd) fn decode(row: Rows<'_>, skip: usize, out: &mut [f32]) {
    // SAFETY: NEON is part of the target's baseline.
    unsafe { run::decode::<Neon>(row, skip, out) };
}

pub(in crate::simd) fn dot(rows: Rows<'_>, vectors: Vectors<'_>, lanes: &mut [[f32; LANES]]) {
    let (task, mut vector) = (Task::new(rows, vectors, lanes), 0);
    while vector < task.vectors() {
        // SAFETY: NEON is part of the target's baseline, and there are so many vectors.
        vector += unsafe {
            match task.vectors() - vector {
                4.. => {
                    task.add::<Neon, 1, 4>(vector);
                    4
                }
                2.. => {
                    task.add::<Neon, 1, 2>(vector);
                    2
                }
                _ => {
                    task.add::<Neon, 2, 1>(vector);
                    1
                }
            }
        };
    }
}

/// Codes are taken in the order in which they are.
pub(in crate::simd) use super::scalar::arrange;

/// 32 codes, one a byte.
#[inline(always)]
unsafe fn bytes<const W: usize>(codes: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: there are 32 codes; NEON is part of the target's baseline.
    unsafe {
        match W {
            2 => [pairs(codes), pairs(codes.add(4))],
            4 => {
                let both = vld1q_u8(codes);
                let (low, high) = (vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both));
                [vzip1q_u8(low, high), vzip2q_u8(low, high)]
            }
            _ => [vld1q_u8(codes), vld1q_u8(codes.add(LANES))],
        }
    }
}

/// Adds sixteen products to four sums. If `DOT`, the CPU has `sdot`, which takes codes below 128.
#[inline(always)]
unsafe fn add<const W: usize, const DOT: bool>(
    sums: int32x4_t,
    codes: uint8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    // SAFETY: the features are the caller's promise.
    unsafe {
        if W == 8 {
            let codes = wide(codes).map(|x| vreinterpretq_s16_u16(x));
            let x = [vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)];
            let mut sums = sums;
            for i in 0..2 {
                sums = vmlal_s16(sums, vget_low_s16(codes[i]), vget_low_s16(x[i]));
                sums = vmlal_high_s16(sums, codes[i], x[i]);
            }
            return sums;
        }
        let codes = vreinterpretq_s8_u8(codes);
        if DOT {
            let mut sums = sums;
            // The compiler's own name for it is not stable.
            std::arch::asm!(
                "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
                sums = inout(vreg) sums,
                codes = in(vreg) codes,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
            return sums;
        }
        // At most 2 * 15 * 127.
        let products = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
        vpadalq_s16(sums, vaddq_s16(products, vmull_high_s8(codes, x)))
    }
}

/// Exact sums of all runs of a row, four at a time, with all vectors.
///
/// There are no closures: they would not have the caller's features.
#[inline(always)]
unsafe fn all<const W: usize, const RUN: usize, const DOT: bool>(
    codes: &[u8],
    x: Rounded<'_>,
    sums: &mut [i32],
) {
    const HALF: usize = 32;
    let Rounded { codes: x, stride, count } = x;
    let runs = sums.len().checked_div(count).unwrap_or(0);
    for first in (0..runs).step_by(4) {
        // SAFETY: the features are the caller's promise, and all runs and vectors are there.
        unsafe {
            // Of the last ones, some may be done again; of runs of 32 there is no second half.
            let mut at = [0; 4];
            let mut ready = [[[vdupq_n_u8(0); 2]; 2]; 4];
            for i in 0..4 {
                at[i] = (first + i).min(runs - 1) * RUN;
                for half in 0..RUN / HALF {
                    let codes = codes.as_ptr().add((at[i] + half * HALF) * W / 8);
                    ready[i][half] = bytes::<W>(codes);
                }
            }
            let (mut x, mut out) = (x.as_ptr(), sums.as_mut_ptr().add(first));
            for _ in 0..count {
                let mut four = [vdupq_n_s32(0); 4];
                for i in 0..4 {
                    for half in 0..RUN / HALF {
                        let x = x.add(at[i] + half * HALF);
                        let [a, b] = ready[i][half];
                        four[i] = add::<W, DOT>(four[i], a, vld1q_s8(x));
                        four[i] = add::<W, DOT>(four[i], b, vld1q_s8(x.add(LANES)));
                    }
                }
                let [a, b, c, d] = four;
                let four = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
                if first + 4 <= runs {
                    vst1q_s32(out, four);
                } else {
                    let mut last = [0; 4];
                    vst1q_s32(last.as_mut_ptr(), four);
                    out.copy_from_nonoverlapping(last.as_ptr(), runs - first);
                }
                (x, out) = (x.wrapping_add(stride), out.wrapping_add(runs));
            }
        }
    }
}

/// The same of a width and runs that are not known before.
#[inline(always)]
unsafe fn any<const DOT: bool>(
    codes: &[u8],
    width: u32,
    x: Rounded<'_>,
    run: usize,
    sums: &mut [i32],
) {
    activations::check(codes, width, x, run, sums);
    // SAFETY: the features are the caller's promise; lengths were checked.
    unsafe {
        match (width, run) {
            (2, 32) => all::<2, 32, DOT>(codes, x, sums),
            (2, _) => all::<2, 64, DOT>(codes, x, sums),
            (4, 32) => all::<4, 32, DOT>(codes, x, sums),
            (4, _) => all::<4, 64, DOT>(codes, x, sums),
            (_, 32) => all::<8, 32, DOT>(codes, x, sums),
            _ => all::<8, 64, DOT>(codes, x, sums),
        }
    }
}

#[target_feature(enable = "dotprod")]
fn with_sdot(codes: &[u8], width: u32, x: Rounded<'_>, run: usize, sums: &mut [i32]) {
    // SAFETY: this function has the feature.
    unsafe { any::<true>(codes, width, x, run, sums) };
}

/// By the instruction for it, where the CPU has it.
pub(in crate::simd) fn sums(
    codes: &[u8],
    width: u32,
    x: Rounded<'_>,
    run: usize,
    sums: &mut [i32],
) {
    // SAFETY: the CPU has the feature, or NEON, which is part of the target's baseline.
    unsafe {
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            with_sdot(codes, width, x, run, sums);
        } else {
            any::<false>(codes, width, x, run, sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_same_without_sdot() {
        let codes: Vec<u8> = (0..=255).collect();
        let x: Vec<i8> = (0..1024).map(|i| (i * 37 % 255 - 127) as i8).collect();
        for (width, run) in [2, 4, 8].into_iter().flat_map(|w| [(w, 32), (w, 64)]) {
            let (mut one, mut two) = (vec![0; 256 * 8 / width as usize / run], Vec::new());
            two.resize(one.len(), 1);
            let x = Rounded { codes: &x, stride: 0, count: 1 };
            // SAFETY: NEON is part of the target's baseline.
            unsafe { any::<false>(&codes, width, x, run, &mut one) };
            sums(&codes, width, x, run, &mut two);
            assert_eq!(one, two);
        }
    }
}
