//! NEON: sixteen comparisons narrowed to a byte each, of which neighbours are added up to two bytes.

use crate::simd::{Pair, normal, sign_bits};
use std::arch::aarch64::{
    uint32x4_t, vandq_u8, vbslq_f32, vcgezq_f32, vdupq_n_u32, vgetq_lane_u64, vld1q_f32, vld1q_u8,
    vpaddlq_u8, vpaddlq_u16, vpaddlq_u32, vreinterpretq_u8_u16, vreinterpretq_u16_u32, vst1q_f32,
    vsubq_f32, vuzp1q_u8, vuzp1q_u16,
};

/// What each lane adds to the byte of its eight.
static WEIGHTS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// A bit for each of sixteen lanes.
#[inline(always)]
fn bits_of(signs: [uint32x4_t; 4]) -> [u8; 2] {
    // SAFETY: the weights are a vector; NEON is part of the target's baseline.
    unsafe {
        let [a, b, c, d] = signs.map(|signs| vreinterpretq_u16_u32(signs));
        let (ab, cd) = (vuzp1q_u16(a, b), vuzp1q_u16(c, d));
        let bytes = vuzp1q_u8(vreinterpretq_u8_u16(ab), vreinterpretq_u8_u16(cd));
        let weighed = vandq_u8(bytes, vld1q_u8(WEIGHTS.as_ptr()));
        let eights = vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(weighed)));
        [vgetq_lane_u64::<0>(eights) as u8, vgetq_lane_u64::<1>(eights) as u8]
    }
}

pub(in crate::simd) fn run(x: &[f32], bits: &mut [u8]) {
    let (whole, rest) = x.as_chunks::<16>();
    let (bytes, end) = bits.split_at_mut(whole.len() * 2);
    for (block, out) in whole.iter().zip(bytes.as_chunks_mut().0) {
        // SAFETY: a block is four vectors; NEON is part of the target's baseline.
        unsafe {
            let mut signs = [vdupq_n_u32(0); 4];
            for (i, signs) in signs.iter_mut().enumerate() {
                *signs = vcgezq_f32(vld1q_f32(block.as_ptr().add(4 * i)));
            }
            *out = bits_of(signs);
        }
    }
    sign_bits::scalar(rest, end);
}

pub(in crate::simd) fn left(x: &mut [f32], [zeros, ones]: Pair<'_>, bits: &mut [u8]) {
    let (whole, rest) = x.as_chunks_mut::<16>();
    let (zeros, last_zeros) = zeros.split_at(whole.len() * 16);
    let (ones, last_ones) = ones.split_at(whole.len() * 16);
    let pairs = zeros.as_chunks::<16>().0.iter().zip(ones.as_chunks::<16>().0);
    let (bytes, end) = bits.split_at_mut(whole.len() * 2);
    for ((block, out), (zero, one)) in whole.iter_mut().zip(bytes.as_chunks_mut().0).zip(pairs) {
        // SAFETY: each of the three is four vectors; NEON is part of the target's baseline.
        unsafe {
            let mut signs = [vdupq_n_u32(0); 4];
            for (i, signs) in signs.iter_mut().enumerate() {
                let x = vld1q_f32(block.as_ptr().add(4 * i));
                *signs = vcgezq_f32(x);
                let zero = vld1q_f32(zero.as_ptr().add(4 * i));
                let one = vld1q_f32(one.as_ptr().add(4 * i));
                let left = normal::neon(vsubq_f32(x, vbslq_f32(*signs, one, zero)));
                vst1q_f32(block.as_mut_ptr().add(4 * i), left);
            }
            *out = bits_of(signs);
        }
    }
    sign_bits::left::scalar(rest, [last_zeros, last_ones], end);
}
