//! NEON converts four lanes at once, on every AArch64: for the sweep. The intrinsics are younger than the
//! Rust that this crate asks for.

use std::arch::aarch64::{float32x4_t, uint16x8_t};
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
