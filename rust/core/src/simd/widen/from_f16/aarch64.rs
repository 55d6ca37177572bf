//! NEON converts four lanes at once, on every AArch64. The intrinsics are younger than the Rust that
//! this crate asks for.

use half::f16;
use std::arch::aarch64::{
    float32x4_t, uint16x8_t, vdupq_n_f32, vld1q_u8, vmulq_f32, vreinterpretq_u16_u8, vst1q_f32,
};
use std::arch::asm;

/// The lower four float16 as float32.
#[inline(always)]
pub(in crate::simd) fn widen_low(x: uint16x8_t) -> float32x4_t {
    let out;
    // SAFETY: NEON is part of the target's baseline; the instruction has no effect but its result.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// The upper four.
#[inline(always)]
pub(in crate::simd) fn widen_high(x: uint16x8_t) -> float32x4_t {
    let out;
    // SAFETY: as above.
    unsafe {
        asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) out, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

pub(in crate::simd) fn run(x: &[f16], out: &mut [f32]) {
    // Elements are little-endian here, and a multiplication by one changes no bit.
    decode(bytemuck::cast_slice(x), 1.0, out);
}

pub(in crate::simd) fn decode(codes: &[[u8; 2]], factor: f32, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "a value for each code");
    let (whole, rest) = codes.as_chunks::<8>();
    let (targets, end) = out.as_chunks_mut::<8>();
    for (block, target) in whole.iter().zip(targets) {
        // SAFETY: a block is eight codes of two bytes, a target eight values of four; NEON is part of
        // the target's baseline.
        unsafe {
            let halves = vreinterpretq_u16_u8(vld1q_u8(block.as_ptr().cast()));
            let scale = vdupq_n_f32(factor);
            vst1q_f32(target.as_mut_ptr(), vmulq_f32(widen_low(halves), scale));
            vst1q_f32(target.as_mut_ptr().add(4), vmulq_f32(widen_high(halves), scale));
        }
    }
    super::decode::scalar(rest, factor, end);
}
