//! NEON, for the sweep: the hits of sixteen lanes as four numbers, each of which picks a shuffle of four
//! lanes.
//!
//! NEON has no instruction that makes a number of a mask. Four masks are narrowed to a byte for each
//! lane, and adding neighbours twice leaves a sum for each vector: 16 times the number of its mask,
//! which is where its row in the table of shuffles begins.

use super::Front;
use std::arch::aarch64::{
    float32x4_t, uint8x16_t, uint32x4_t, vabsq_f32, vaddq_u32, vandq_u8, vcgtq_f32, vdupq_n_u32,
    vgetq_lane_u32, vld1q_u8, vld1q_u32, vmaxq_u32, vmaxvq_u32, vpaddlq_u8, vpaddlq_u16,
    vqtbl1q_u8, vreinterpretq_f32_u8, vreinterpretq_u8_f32, vreinterpretq_u8_u16,
    vreinterpretq_u8_u32, vreinterpretq_u16_u32, vreinterpretq_u32_f32, vreinterpretq_u32_u8,
    vst1q_f32, vst1q_u32, vuzp1q_u8, vuzp1q_u16,
};

/// Four float32 each.
pub(in crate::simd) type Four = [float32x4_t; 4];

/// For each mask of four lanes, the bytes of the lanes that are set, ascending, then those of the
/// first.
static SHUFFLE: [[u8; 16]; 16] = shuffles();

/// How many bytes the lanes that are set take, by 16 times the number of the mask.
static KEPT: [u8; 256] = kept();

/// What each lane's byte of a mask adds to 16 times the number of the mask.
static WEIGHTS: [u8; 16] = [16, 32, 64, 128, 16, 32, 64, 128, 16, 32, 64, 128, 16, 32, 64, 128];

const fn shuffles() -> [[u8; 16]; 16] {
    let mut table = [[0; 16]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut lane, mut at) = (0, 0);
        while lane < 4 {
            if mask >> lane & 1 == 1 {
                let mut byte = 0;
                while byte < 4 {
                    table[mask][4 * at + byte] = (4 * lane + byte) as u8;
                    byte += 1;
                }
                at += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
}

const fn kept() -> [u8; 256] {
    let mut table = [0; 256];
    let mut mask = 0_usize;
    while mask < 16 {
        table[16 * mask] = 4 * mask.count_ones() as u8;
        mask += 1;
    }
    table
}

/// The masks of four vectors: 16 times the number of each.
#[inline(always)]
fn numbers(masks: [uint32x4_t; 4]) -> [u32; 4] {
    // SAFETY: the weights are a vector; NEON is part of the target's baseline.
    unsafe {
        let [a, b, c, d] = masks.map(|mask| vreinterpretq_u16_u32(mask));
        let (ab, cd) = (vuzp1q_u16(a, b), vuzp1q_u16(c, d));
        let bytes = vuzp1q_u8(vreinterpretq_u8_u16(ab), vreinterpretq_u8_u16(cd));
        let weighed = vandq_u8(bytes, vld1q_u8(WEIGHTS.as_ptr()));
        let sums = vpaddlq_u16(vpaddlq_u8(weighed));
        [
            vgetq_lane_u32::<0>(sums),
            vgetq_lane_u32::<1>(sums),
            vgetq_lane_u32::<2>(sums),
            vgetq_lane_u32::<3>(sums),
        ]
    }
}

/// The shuffle of a mask, by 16 times its number, and how many bytes of either output it keeps.
///
/// # Safety
///
/// The number is one of [`numbers`].
#[inline(always)]
unsafe fn shuffle(number: u32) -> (uint8x16_t, usize) {
    let number = number as usize;
    // SAFETY: the number of a mask is below 16; 16 times as much is where its row of 16 bytes begins.
    unsafe {
        let lanes = vld1q_u8(SHUFFLE.as_ptr().cast::<u8>().add(number));
        (lanes, usize::from(*KEPT.get_unchecked(number)))
    }
}

/// Stores the lanes of sixteen float32 that are above the bound and their positions, of which `at`
/// is the first.
///
/// # Safety
///
/// As of [`Front::ends`].
#[inline(always)]
pub(in crate::simd) unsafe fn store(v: Four, bound: float32x4_t, at: u32, to: &mut Front) {
    // SAFETY: NEON is part of the target's baseline; there is room for four elements each time, by
    // the promise.
    unsafe {
        let masks = [
            vcgtq_f32(vabsq_f32(v[0]), bound),
            vcgtq_f32(vabsq_f32(v[1]), bound),
            vcgtq_f32(vabsq_f32(v[2]), bound),
            vcgtq_f32(vabsq_f32(v[3]), bound),
        ];
        let numbers = numbers(masks);
        let mut positions = vaddq_u32(vdupq_n_u32(at), vld1q_u32([0, 1, 2, 3].as_ptr()));
        for (i, v) in v.into_iter().enumerate() {
            let (lanes, kept) = shuffle(numbers[i]);
            let (indices, values) = to.ends();
            vst1q_u32(indices, u32s(positions, lanes));
            vst1q_f32(values, f32s(v, lanes));
            to.advance(kept);
            positions = vaddq_u32(positions, vdupq_n_u32(4));
        }
    }
}

/// The lanes that a shuffle picks.
#[inline(always)]
fn u32s(from: uint32x4_t, lanes: uint8x16_t) -> uint32x4_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe { vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(from), lanes)) }
}

/// The lanes that a shuffle picks.
#[inline(always)]
fn f32s(from: float32x4_t, lanes: uint8x16_t) -> float32x4_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe { vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(from), lanes)) }
}

/// The bits of magnitudes.
#[inline(always)]
pub(in crate::simd) fn magnitudes(x: float32x4_t) -> uint32x4_t {
    // SAFETY: NEON is part of the target's baseline.
    unsafe { vreinterpretq_u32_f32(vabsq_f32(x)) }
}

/// Whether a maximum of magnitudes, as bits, is above a bound. So is that of a magnitude that is not a
/// number: what is above is decided later, entry by entry.
#[inline(always)]
pub(in crate::simd) fn may_hit(peaks: [uint32x4_t; 2], bound: float32x4_t) -> (bool, uint32x4_t) {
    // SAFETY: NEON is part of the target's baseline.
    unsafe {
        let largest = vmaxq_u32(peaks[0], peaks[1]);
        // A bound below zero, which every magnitude is above, is a negative number as bits, too.
        let bound = vgetq_lane_u32::<0>(vreinterpretq_u32_f32(bound));
        (vmaxvq_u32(largest) as i32 > bound as i32, largest)
    }
}
