//! The values of codes, each times a scale of its own: exact but for the rounding of that product to
//! float32.

use crate::simd::stamp::stamp;

#[inline(always)]
pub(super) fn widen(code: u8) -> f32 {
    let code = u32::from(code);
    f32::from_bits((code & 0x7F) << 23 | (code & 0x80) << 24)
}

#[inline(always)]
fn body(codes: &[u8], scales: &[f32], out: &mut [f32]) {
    for ((out, code), scale) in out.iter_mut().zip(codes).zip(scales) {
        *out = widen(*code) * scale;
    }
}

stamp!(fn(codes: &[u8], scales: &[f32], out: &mut [f32]) => body);
