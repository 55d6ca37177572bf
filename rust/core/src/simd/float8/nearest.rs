//! Nearest code of `value * factor * again`, ties to even, at most the largest finite code.
//!
//! Two factors, because the power of two that lifts the smallest values is no float32 by itself.

use super::Format;
use super::decode::widen;
use crate::simd::stamp::stamp;
use crate::simd::{Pair, Scaling, normal_or_zero};

#[inline(always)]
fn round(value: f32, format: Format) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let shift = format.shift();
    // Adding just under half carries into the kept bits exactly where rounding goes up; the lowest
    // kept bit decides ties.
    let half = (1 << (shift - 1)) - 1 + ((magnitude >> shift) & 1);
    let normal = (magnitude.wrapping_add(half) >> shift).wrapping_sub(format.excess());
    // Where the last bit of a sum is worth one step, the processor rounds to steps.
    let anchor = format.anchor();
    let sum = f32::from_bits(magnitude) + f32::from_bits(anchor);
    let subnormal = sum.to_bits().wrapping_sub(anchor);
    let code = if magnitude < format.smallest_normal() { subnormal } else { normal };
    (code.min(u32::from(format.largest())) | (bits >> 24 & 0x80)) as u8
}

#[inline(always)]
fn body(values: &[f32], format: Format, [factors, again]: Pair<'_>, codes: &mut [u8]) {
    let factors = factors.iter().zip(again);
    for ((code, value), (factor, again)) in codes.iter_mut().zip(values).zip(factors) {
        *code = round(value * factor * again, format);
    }
}

#[inline(always)]
fn leave(values: &mut [f32], format: Format, scaling: Scaling<'_>, codes: &mut [u8]) {
    let [factors, again] = scaling.to;
    let factors = factors.iter().zip(again).zip(scaling.back);
    for ((code, value), ((factor, again), scale)) in codes.iter_mut().zip(values).zip(factors) {
        *code = round(*value * factor * again, format);
        *value = normal_or_zero(*value - widen(*code, format) * scale);
    }
}

stamp!(fn(values: &[f32], format: Format, factors: Pair<'_>, codes: &mut [u8]) => body);

/// The same, and what is left of each value.
pub(in crate::simd) mod left {
    use super::{Format, Scaling, leave, stamp};
    stamp!(
        fn(values: &mut [f32], format: Format, scaling: Scaling<'_>, codes: &mut [u8]) => leave
    );
}
