//! NEON: the three steps of the plain form for sixteen codes at once, which are two words.
//!
//! Vectors are loaded and stored whole. Of what is stored at once only the first bytes count; the rest
//! is overwritten by what follows, and the last codes are left to the plain form.

use super::{for_width, plain};
use std::arch::aarch64::{
    uint8x16_t, uint16x8_t, uint32x4_t, uint64x2_t, vandq_u8, vbslq_u16, vbslq_u32, vbslq_u64,
    vdupq_n_s16, vdupq_n_s32, vdupq_n_s64, vdupq_n_u8, vdupq_n_u16, vdupq_n_u32, vdupq_n_u64,
    vld1q_u8, vqtbl1q_u8, vreinterpretq_u8_u16, vreinterpretq_u8_u64, vreinterpretq_u16_u8,
    vreinterpretq_u16_u32, vreinterpretq_u32_u16, vreinterpretq_u32_u64, vreinterpretq_u64_u8,
    vreinterpretq_u64_u32, vshlq_u16, vshlq_u32, vshlq_u64, vshrq_n_u16, vshrq_n_u32, vshrq_n_u64,
    vst1q_u8,
};

pub(in crate::simd) fn pack(codes: &[u8], width: u32, out: &mut [u8]) {
    for_width!(width, codes, out, pack_fixed);
}

pub(in crate::simd) fn unpack(bytes: &[u8], width: u32, codes: &mut [u8]) {
    for_width!(width, bytes, codes, unpack_fixed);
}

/// Sixteen codes at a time for which a vector of bytes is there: how many codes that makes.
const fn whole(codes: usize, width: usize, bytes: usize) -> usize {
    let vectors = match bytes.checked_sub(16) {
        Some(capacity) => capacity / (2 * width) + 1,
        None => 0,
    };
    let groups = codes / 16;
    16 * if vectors < groups { vectors } else { groups }
}

/// The bytes of a vector that hold the fields: of each of its two words the first `width`.
const fn fields(width: usize) -> [u8; 16] {
    let (mut table, mut i) = ([0xFF; 16], 0);
    while i < 2 * width {
        table[i] = (i % width + 8 * (i / width)) as u8;
        i += 1;
    }
    table
}

/// The inverse: which byte of the fields goes where.
const fn words(width: usize) -> [u8; 16] {
    let (mut table, mut i) = ([0xFF; 16], 0);
    while i < 2 * width {
        table[i % width + 8 * (i / width)] = i as u8;
        i += 1;
    }
    table
}

fn pack_fixed<const W: usize>(codes: &[u8], out: &mut [u8]) {
    let end = whole(codes.len(), W, out.len());
    for at in (0..end).step_by(16) {
        // SAFETY: there are sixteen codes at `at`, and by `whole` sixteen bytes where their fields
        // begin. NEON is part of the target's baseline.
        unsafe {
            let word = nearer::<W>(vld1q_u8(codes.as_ptr().add(at)));
            let packed = vqtbl1q_u8(word, vld1q_u8(const { fields(W) }.as_ptr()));
            vst1q_u8(out.as_mut_ptr().add(at / 8 * W), packed);
        }
    }
    plain::pack(&codes[end..], W as u32, &mut out[end / 8 * W..]);
}

fn unpack_fixed<const W: usize>(bytes: &[u8], codes: &mut [u8]) {
    let end = whole(codes.len(), W, bytes.len());
    for at in (0..end).step_by(16) {
        // SAFETY: there is room for sixteen codes at `at`, and by `whole` sixteen bytes where their
        // fields begin. NEON is part of the target's baseline.
        unsafe {
            let packed = vld1q_u8(bytes.as_ptr().add(at / 8 * W));
            let word = vqtbl1q_u8(packed, vld1q_u8(const { words(W) }.as_ptr()));
            vst1q_u8(codes.as_mut_ptr().add(at), apart::<W>(word));
        }
    }
    plain::unpack(&bytes[end / 8 * W..], W as u32, &mut codes[end..]);
}

/// Brings the fields of each word together: neighbours of 8, then of 16, then of 32 bits. What is
/// above a field is zero.
#[inline(always)]
fn nearer<const W: usize>(codes: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let x: uint16x8_t = vreinterpretq_u16_u8(codes);
        let moved = vshlq_u16(vshrq_n_u16::<8>(x), vdupq_n_s16(W as i16));
        let x = vbslq_u16(vdupq_n_u16((1 << W) - 1), x, moved);
        let x: uint32x4_t = vreinterpretq_u32_u16(x);
        let moved = vshlq_u32(vshrq_n_u32::<16>(x), vdupq_n_s32(2 * W as i32));
        let x = vbslq_u32(vdupq_n_u32((1 << (2 * W)) - 1), x, moved);
        let x: uint64x2_t = vreinterpretq_u64_u32(x);
        let moved = vshlq_u64(vshrq_n_u64::<32>(x), vdupq_n_s64(4 * W as i64));
        vreinterpretq_u8_u64(vbslq_u64(vdupq_n_u64((1 << (4 * W)) - 1), x, moved))
    }
}

/// The inverse of [`nearer`]. What comes along above a field goes in the end.
#[inline(always)]
fn apart<const W: usize>(word: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let x: uint64x2_t = vreinterpretq_u64_u8(word);
        let moved = vshlq_u64(x, vdupq_n_s64(32 - 4 * W as i64));
        let x = vbslq_u64(vdupq_n_u64(0xFFFF_FFFF), x, moved);
        let x: uint32x4_t = vreinterpretq_u32_u64(x);
        let moved = vshlq_u32(x, vdupq_n_s32(16 - 2 * W as i32));
        let x = vbslq_u32(vdupq_n_u32(0xFFFF), x, moved);
        let x: uint16x8_t = vreinterpretq_u16_u32(x);
        let moved = vshlq_u16(x, vdupq_n_s16(8 - W as i16));
        let x = vbslq_u16(vdupq_n_u16(0xFF), x, moved);
        vandq_u8(vreinterpretq_u8_u16(x), vdupq_n_u8((1 << W) - 1))
    }
}
