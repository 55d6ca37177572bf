//! NEON: the compaction of [`above`](crate::simd::above), fed from lists.
//!
//! In place is safe with whole-vector stores: the entries kept are never ahead of those read, so a
//! store ends no later than the vectors that were loaded before it.

use super::scalar;
use crate::simd::above::aarch64::{f32s, numbers, shuffle, u32s};
use std::arch::aarch64::{
    vabsq_f32, vcgtq_f32, vdupq_n_f32, vdupq_n_u32, vld1q_f32, vld1q_u32, vst1q_f32, vst1q_u32,
};

pub(in crate::simd) fn run(indices: &mut [u32], values: &mut [f32], bound: f32) -> usize {
    assert_eq!(indices.len(), values.len(), "lists of one length");
    let whole = values.len() / 16 * 16;
    let mut bytes = 0;
    for at in (0..whole).step_by(16) {
        // SAFETY: both lists hold sixteen elements from `at` on. As many as `bytes` says are kept, at
        // most those read, and each time four are stored no more than four are added. NEON is part of the target's baseline.
        unsafe {
            let limit = vdupq_n_f32(bound);
            let (mut v, mut i) = ([vdupq_n_f32(0.0); 4], [vdupq_n_u32(0); 4]);
            let mut masks = i;
            for j in 0..4 {
                v[j] = vld1q_f32(values.as_ptr().add(at + 4 * j));
                i[j] = vld1q_u32(indices.as_ptr().add(at + 4 * j));
                masks[j] = vcgtq_f32(vabsq_f32(v[j]), limit);
            }
            let numbers = numbers(masks);
            for j in 0..4 {
                let (lanes, kept) = shuffle(numbers[j]);
                vst1q_f32(values.as_mut_ptr().byte_add(bytes), f32s(v[j], lanes));
                vst1q_u32(indices.as_mut_ptr().byte_add(bytes), u32s(i[j], lanes));
                bytes += kept;
            }
        }
    }
    scalar::from(whole, bytes / size_of::<u32>(), indices, values, bound)
}
