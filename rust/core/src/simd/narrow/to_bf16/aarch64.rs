//! NEON: adding and taking the upper half is one instruction, and the sign is put back for eight codes
//! at once.

use super::{MAX, body, leave};
use crate::simd::normal;
use std::arch::aarch64::{
    float32x4_t, uint16x4_t, uint16x8_t, vabsq_f32, vaddhn_u32, vaddq_u32, vandq_u32, vbslq_u16,
    vcombine_u16, vdupq_n_u16, vdupq_n_u32, vget_low_u16, vld1q_f32, vminq_u16,
    vreinterpretq_f32_u32, vreinterpretq_u8_u16, vreinterpretq_u16_f32, vreinterpretq_u32_f32,
    vshll_high_n_u16, vshll_n_u16, vshlq_n_u32, vshrq_n_u32, vst1q_f32, vst1q_u8, vsubq_f32,
    vuzp2q_u16,
};

/// The codes of four magnitudes, before they are limited.
#[inline(always)]
fn magnitudes(x: float32x4_t) -> uint16x4_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let bits = vreinterpretq_u32_f32(vabsq_f32(x));
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        vaddhn_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff))
    }
}

/// The codes of eight values.
#[inline(always)]
fn codes(x: [float32x4_t; 2]) -> uint16x8_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let rounded = vcombine_u16(magnitudes(x[0]), magnitudes(x[1]));
        let limited = vminq_u16(rounded, vdupq_n_u16(MAX as u16));
        let upper = vuzp2q_u16(vreinterpretq_u16_f32(x[0]), vreinterpretq_u16_f32(x[1]));
        vbslq_u16(vdupq_n_u16(0x8000), upper, limited)
    }
}

pub(in crate::simd) fn run(values: &[f32], out: &mut [[u8; 2]]) {
    assert_eq!(values.len(), out.len(), "a code for each value");
    let (whole, rest) = values.as_chunks::<8>();
    let (targets, end) = out.as_chunks_mut::<8>();
    for (block, target) in whole.iter().zip(targets) {
        // SAFETY: a block is eight values of four bytes, a target eight codes of two.
        unsafe {
            let x = [vld1q_f32(block.as_ptr()), vld1q_f32(block.as_ptr().add(4))];
            vst1q_u8(target.as_mut_ptr().cast(), vreinterpretq_u8_u16(codes(x)));
        }
    }
    body(rest, end);
}

pub(in crate::simd) fn left(values: &mut [f32], out: &mut [[u8; 2]]) {
    assert_eq!(values.len(), out.len(), "a code for each value");
    let (whole, rest) = values.as_chunks_mut::<8>();
    let (targets, end) = out.as_chunks_mut::<8>();
    for (block, target) in whole.iter_mut().zip(targets) {
        // SAFETY: as in `run`.
        unsafe {
            let x = [vld1q_f32(block.as_ptr()), vld1q_f32(block.as_ptr().add(4))];
            let codes = codes(x);
            vst1q_u8(target.as_mut_ptr().cast(), vreinterpretq_u8_u16(codes));
            let low = vshlq_n_u32::<16>(vshll_n_u16::<0>(vget_low_u16(codes)));
            let high = vshlq_n_u32::<16>(vshll_high_n_u16::<0>(codes));
            let sent = [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)];
            for i in 0..2 {
                let left = normal::neon(vsubq_f32(x[i], sent[i]));
                vst1q_f32(block.as_mut_ptr().add(4 * i), left);
            }
        }
    }
    leave(rest, end);
}
