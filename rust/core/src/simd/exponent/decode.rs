//! The values of codes, times a scale: exact but for the rounding of that product to float32.

use crate::simd::stamp::stamp;

#[inline(always)]
fn body(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(codes) {
        let code = u32::from(*code);
        *out = f32::from_bits((code & 0x7F) << 23 | (code & 0x80) << 24) * scale;
    }
}

stamp!(fn(codes: &[u8], scale: f32, out: &mut [f32]) => body);
