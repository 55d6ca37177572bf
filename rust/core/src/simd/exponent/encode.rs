//! Codes of `value * factor`, at most the largest code: `factor` is one over the entry's scale.
//!
//! Value `i` draws the number at position `first + i` of the key.

use super::decode::widen;
use crate::rng::Key;
use crate::simd::stamp::stamp;
use crate::simd::{Scaling, normal_or_zero};

#[inline(always)]
fn round(scaled: f32, draw: u32) -> u8 {
    let bits = scaled.to_bits();
    let exponent = ((bits & 0x7FFF_FFFF) + (draw >> 9)) >> 23;
    (exponent.min(0x7F) | (bits >> 24 & 0x80)) as u8
}

#[inline(always)]
fn body(values: &[f32], factors: &[f32], key: Key, first: u32, codes: &mut [u8]) {
    let entries = codes.iter_mut().zip(values).zip(factors);
    for (at, ((code, value), factor)) in entries.enumerate() {
        *code = round(value * factor, key.bits(first.wrapping_add(at as u32)));
    }
}

#[inline(always)]
fn leave(values: &mut [f32], scaling: Scaling<'_>, key: Key, first: u32, codes: &mut [u8]) {
    let entries = codes.iter_mut().zip(values).zip(scaling.to[0].iter().zip(scaling.back));
    for (at, ((code, value), (factor, scale))) in entries.enumerate() {
        *code = round(*value * factor, key.bits(first.wrapping_add(at as u32)));
        *value = normal_or_zero(*value - widen(*code) * scale);
    }
}

stamp!(fn(values: &[f32], factors: &[f32], key: Key, first: u32, codes: &mut [u8]) => body);

/// The same, and what is left of each value.
pub(in crate::simd) mod left {
    use super::{Key, Scaling, leave, stamp};
    stamp!(
        fn(values: &mut [f32], scaling: Scaling<'_>, key: Key, first: u32, codes: &mut [u8]) => leave
    );
}
