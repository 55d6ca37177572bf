//! bfloat16: the upper half of a float32.

use crate::simd::Kernels;

pub(super) fn encode(values: &[f32], out: &mut [u8]) {
    let (codes, _) = out.as_chunks_mut();
    Kernels::current().narrow_bf16(values, codes);
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (codes, _) = bytes.as_chunks();
    for (value, code) in out.iter_mut().zip(codes) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*code)) << 16);
    }
}
