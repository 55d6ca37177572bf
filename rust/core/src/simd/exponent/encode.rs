//! Codes of `value * factor`, at most the largest code: `factor` is one over the scale.
//!
//! Value `i` draws the number at position `first + i` of the key.

use crate::rng::Key;
use crate::simd::stamp::stamp;

#[inline(always)]
fn body(values: &[f32], factor: f32, key: Key, first: u32, codes: &mut [u8]) {
    for ((at, code), value) in codes.iter_mut().enumerate().zip(values) {
        let bits = (value * factor).to_bits();
        let draw = key.bits(first.wrapping_add(at as u32)) >> 9;
        let exponent = ((bits & 0x7FFF_FFFF) + draw) >> 23;
        *code = (exponent.min(0x7F) | (bits >> 24 & 0x80)) as u8;
    }
}

stamp!(fn(values: &[f32], factor: f32, key: Key, first: u32, codes: &mut [u8]) => body);
