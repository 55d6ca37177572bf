//! Stochastic rounding of `value * factor * again` to one of the two neighbouring codes, unbiased.
//!
//! Value `i` draws the number at position `first + i` of the key, and is rounded up with exactly the
//! right probability. A value that is a code always gives that code.

use super::Format;
use super::decode::widen;
use crate::rng::Key;
use crate::simd::stamp::stamp;
use crate::simd::{Pair, Scaling, normal_or_zero};

/// Bits of the fraction of a subnormal magnitude, counted in steps.
const FRACTION: u32 = 28;

/// The largest fraction.
const LAST: u32 = u32::MAX << (32 - FRACTION);

/// One over the subnormal step, times 2^28.
#[inline(always)]
fn steps(format: Format) -> f32 {
    f32::from_bits((126 + format.bias() + format.mantissa() + FRACTION) << 23)
}

/// The code of a value, and for a subnormal magnitude the fraction that the draw has brought it to,
/// in the upper bits: at [`LAST`] the next code is as far as what 2^-28 of a step leaves out.
#[inline(always)]
fn round(value: f32, draw: u32, format: Format, steps: f32) -> (u8, u32) {
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
    let sum = exact.wrapping_add(draw >> (32 - FRACTION));
    let subnormal = sum >> FRACTION;
    let code = if is_subnormal { subnormal } else { normal };
    let code = code.min(u32::from(format.largest())) | (bits >> 24 & 0x80);
    (code as u8, sum << (32 - FRACTION))
}

/// As [`round`], with what is open decided by further draws.
fn settled(value: f32, key: Key, at: u32, format: Format, steps: f32) -> u8 {
    let (code, reached) = round(value, key.bits(at), format, steps);
    let exact = value.abs() * steps;
    // A magnitude with a fraction of a part is below 2^24 of them, and so below a whole step.
    let open = reached == LAST && exact < 16_777_216.0;
    code + u8::from(open && key.further().chance(at, exact - libm::truncf(exact)))
}

#[inline(always)]
fn body(
    values: &[f32],
    format: Format,
    [factors, again]: Pair<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    let (steps, mut furthest) = (steps(format), 0);
    let entries = codes.iter_mut().zip(values).zip(factors.iter().zip(again));
    for (at, ((code, value), (factor, again))) in entries.enumerate() {
        let draw = key.bits(first.wrapping_add(at as u32));
        let reached;
        (*code, reached) = round(value * factor * again, draw, format, steps);
        furthest = furthest.max(reached);
    }
    if furthest == LAST {
        settle(values, format, [factors, again], key, first, codes);
    }
}

/// Rounds a block in which a draw has left something open: one in a hundred thousand.
#[cold]
#[inline(never)]
fn settle(
    values: &[f32],
    format: Format,
    [factors, again]: Pair<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    let steps = steps(format);
    let entries = codes.iter_mut().zip(values).zip(factors.iter().zip(again));
    for (at, ((code, value), (factor, again))) in entries.enumerate() {
        let at = first.wrapping_add(at as u32);
        *code = settled(value * factor * again, key, at, format, steps);
    }
}

#[inline(always)]
fn leave(
    values: &mut [f32],
    format: Format,
    scaling: Scaling<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    body(values, format, scaling.to, key, first, codes);
    // A loop of its own: what a draw leaves open is settled from the values.
    for ((value, code), scale) in values.iter_mut().zip(codes).zip(scaling.back) {
        *value = normal_or_zero(*value - widen(*code, format) * scale);
    }
}

stamp!(
    fn(values: &[f32], format: Format, factors: Pair<'_>, key: Key, first: u32, codes: &mut [u8]) => body
);

/// The same, and what is left of each value.
pub(in crate::simd) mod left {
    use super::{Format, Key, Scaling, leave, stamp};
    stamp!(
        fn(
            values: &mut [f32],
            format: Format,
            scaling: Scaling<'_>,
            key: Key,
            first: u32,
            codes: &mut [u8],
        ) => leave
    );
}
