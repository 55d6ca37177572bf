//! The `half` crate converts slices, in hardware where the target has it.

use super::MAX;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// Values at a time: their scaled copies stay in the cache.
const PART: usize = 256;

pub(in crate::simd) fn run(values: &[f32], factor: f32, codes: &mut [[u8; 2]]) {
    let (mut scaled, mut halves) = ([0.0; PART], [f16::ZERO; PART]);
    for (values, codes) in values.chunks(PART).zip(codes.chunks_mut(PART)) {
        let (scaled, halves) = (&mut scaled[..values.len()], &mut halves[..values.len()]);
        for (scaled, value) in scaled.iter_mut().zip(values) {
            *scaled = (value * factor).clamp(-MAX, MAX);
        }
        halves.convert_from_f32_slice(scaled);
        for (code, half) in codes.iter_mut().zip(halves) {
            *code = half.to_le_bytes();
        }
    }
}
