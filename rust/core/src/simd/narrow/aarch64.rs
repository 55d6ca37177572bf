//! NEON converts four lanes at once, on every AArch64.

use super::{MAX, scalar};
use std::arch::aarch64::{
    float32x4_t, uint16x4_t, vcombine_u16, vdupq_n_f32, vld1q_f32, vmaxnmq_f32, vminnmq_f32,
    vmulq_f32, vreinterpretq_u8_u16, vst1q_u8,
};
use std::arch::asm;

/// Four float16, in the rounding mode of the thread. The intrinsic is younger than the Rust that this
/// crate asks for.
#[inline(always)]
fn narrow(x: float32x4_t) -> uint16x4_t {
    let out;
    // SAFETY: NEON is part of the target's baseline; the instruction has no effect but its result.
    unsafe {
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

pub(in crate::simd) fn run(values: &[f32], factor: f32, codes: &mut [[u8; 2]]) {
    assert_eq!(values.len(), codes.len(), "a code for each value");
    let (whole, rest) = values.as_chunks::<8>();
    let (targets, end) = codes.as_chunks_mut::<8>();
    for (block, target) in whole.iter().zip(targets) {
        // SAFETY: a block is eight values of four bytes, a target eight codes of two; NEON is part of
        // the target's baseline.
        unsafe {
            let (highest, lowest) = (vdupq_n_f32(MAX), vdupq_n_f32(-MAX));
            let mut halves = [vld1q_f32(block.as_ptr()), vld1q_f32(block.as_ptr().add(4))];
            for half in &mut halves {
                let scaled = vmulq_f32(*half, vdupq_n_f32(factor));
                *half = vmaxnmq_f32(vminnmq_f32(scaled, highest), lowest);
            }
            let codes = vcombine_u16(narrow(halves[0]), narrow(halves[1]));
            vst1q_u8(target.as_mut_ptr().cast(), vreinterpretq_u8_u16(codes));
        }
    }
    scalar(rest, factor, end);
}
