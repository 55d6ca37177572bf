//! float32 to bfloat16: the upper half, rounded to nearest even, at most the largest finite value.

use crate::simd::normal_or_zero;
use crate::simd::stamp::stamp;

/// Code of the largest finite value.
const MAX: u32 = 0x7f7f;

/// Nearest code, ties to even. Adding just under half carries into the kept bits exactly where
/// rounding goes up; the lowest kept bit decides ties.
#[inline(always)]
fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
    (rounded.min(MAX) | (bits >> 16 & 0x8000)) as u16
}

#[inline(always)]
fn body(values: &[f32], codes: &mut [[u8; 2]]) {
    for (code, value) in codes.iter_mut().zip(values) {
        *code = round(*value).to_le_bytes();
    }
}

stamp!(fn(values: &[f32], codes: &mut [[u8; 2]]) => body);

#[inline(always)]
fn leave(values: &mut [f32], codes: &mut [[u8; 2]]) {
    for (code, value) in codes.iter_mut().zip(values) {
        let rounded = round(*value);
        *code = rounded.to_le_bytes();
        *value = normal_or_zero(*value - f32::from_bits(u32::from(rounded) << 16));
    }
}

/// The same, and values become what their codes do not say of them.
pub(in crate::simd) mod left {
    use super::{leave, stamp};

    stamp!(fn(values: &mut [f32], codes: &mut [[u8; 2]]) => leave);
}

#[cfg(test)]
mod tests {
    use crate::reference::kept;
    use crate::simd::testing::levels_and_lengths;
    use half::bf16;

    #[test]
    fn equals_one_value_at_a_time_on_every_level() {
        levels_and_lengths(|kernels, mut x| {
            if let Some(last) = x.last_mut() {
                *last = f32::MAX;
            }
            let mut codes = vec![[0xAA; 2]; x.len()];
            kernels.narrow_bf16(&x, &mut codes);
            for (value, code) in x.iter().zip(&codes) {
                let expected = bf16::from_f32(*value);
                let expected = if expected.is_finite() { expected } else { bf16::MAX };
                assert_eq!(*code, expected.to_le_bytes(), "{value}");
            }
            let (mut left, mut again) = (x.clone(), vec![[0xAA; 2]; x.len()]);
            kernels.narrow_bf16_left(&mut left, &mut again);
            assert_eq!(again, codes);
            for ((left, value), code) in left.iter().zip(&x).zip(codes) {
                let expected = kept(value - bf16::from_le_bytes(code).to_f32());
                assert_eq!(left.to_bits(), expected.to_bits());
            }
        });
    }
}
