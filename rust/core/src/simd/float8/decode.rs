//! The values of codes, each times a scale of its own: exact but for the rounding of that product to
//! float32.

use super::Format;
use crate::simd::stamp::stamp;

#[inline(always)]
pub(super) fn widen(code: u8, format: Format) -> f32 {
    let code = u32::from(code);
    let magnitude = code & 0x7F;
    let normal = (magnitude + format.excess()) << format.shift();
    // Steps added to the float32 whose last bit is worth one, and taken out again.
    let anchor = format.anchor();
    let subnormal = f32::from_bits(anchor | magnitude) - f32::from_bits(anchor);
    let is_subnormal = magnitude < 1 << format.mantissa();
    let bits = if is_subnormal { subnormal.to_bits() } else { normal };
    f32::from_bits(bits | (code & 0x80) << 24)
}

#[inline(always)]
fn body(codes: &[u8], format: Format, scales: &[f32], out: &mut [f32]) {
    for ((out, code), scale) in out.iter_mut().zip(codes).zip(scales) {
        *out = widen(*code, format) * scale;
    }
}

stamp!(fn(codes: &[u8], format: Format, scales: &[f32], out: &mut [f32]) => body);
