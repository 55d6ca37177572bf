//! One of the two codes around `value * factor * again`, by chance, so that the mean is the value.
//!
//! Value `i` draws the number at position `first + i` of the key. A normal magnitude goes up with
//! exactly the probability that it should; a subnormal one to 2^-28 of a step, which is what a
//! magnitude below that probability never takes. A code is given for itself always.

use super::Format;
use crate::rng::Key;
use crate::simd::stamp::stamp;

/// Bits of the fraction of a subnormal magnitude, counted in steps.
const FRACTION: u32 = 28;

#[inline(always)]
fn round(value: f32, draw: u32, format: Format, steps: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let shift = format.shift();
    let normal =
        (magnitude.wrapping_add(draw >> (32 - shift)) >> shift).wrapping_sub(format.excess());
    let is_subnormal = magnitude < format.smallest_normal();
    let exact = f32::from_bits(if is_subnormal { magnitude } else { 0 }) * steps;
    // SAFETY: what is below the smallest normal is below 2^3 steps, so that the product is from 0 to
    // 2^31, exclusive. (The conversion that checks is three times as long as all the rest.)
    let exact = unsafe { exact.to_int_unchecked::<i32>() } as u32;
    let subnormal = exact.wrapping_add(draw >> (32 - FRACTION)) >> FRACTION;
    let code = if is_subnormal { subnormal } else { normal };
    (code.min(u32::from(format.largest())) | (bits >> 24 & 0x80)) as u8
}

#[inline(always)]
fn body(
    values: &[f32],
    format: Format,
    [factor, again]: [f32; 2],
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    // One over the subnormal step, times 2^28.
    let steps = f32::from_bits((126 + format.bias() + format.mantissa() + FRACTION) << 23);
    for ((at, code), value) in codes.iter_mut().enumerate().zip(values) {
        let draw = key.bits(first.wrapping_add(at as u32));
        *code = round(value * factor * again, draw, format, steps);
    }
}

stamp!(
    fn(values: &[f32], format: Format, factors: [f32; 2], key: Key, first: u32, codes: &mut [u8]) => body
);
