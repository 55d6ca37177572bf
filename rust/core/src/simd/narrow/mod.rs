//! float32 to the codes of 16-bit floats, rounded to nearest even and never to infinity.
//!
//! To float16, `narrow_f16(values, factor, codes)` writes the little-endian bytes of `clamp(value * factor, ±65504)`
//! for as many codes as there are values. Clamping comes first, because what lies between the
//! largest code and the next step would round up to infinity. Values are finite. To bfloat16 see
//! [`to_bf16`].

mod scalar;
pub(in crate::simd) mod to_bf16;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar::run as neon;
pub(in crate::simd) use scalar::run as scalar;
/// Conversion is eight lanes wide on both.
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{run as avx2, run as avx512};

/// Largest finite float16.
const MAX: f32 = 65504.0;

#[cfg(test)]
mod tests {
    use super::MAX;
    use crate::simd::testing::levels_and_lengths;
    use half::f16;

    #[test]
    fn equals_one_value_at_a_time_on_every_level() {
        levels_and_lengths(|kernels, x| {
            for factor in [1.0f32, 65536.0, 1e-3, f32::MIN_POSITIVE] {
                let mut codes = vec![[0xAA; 2]; x.len()];
                kernels.narrow_f16(&x, factor, &mut codes);
                for (value, code) in x.iter().zip(&codes) {
                    let expected = f16::from_f32((value * factor).clamp(-MAX, MAX));
                    assert_eq!(*code, expected.to_le_bytes(), "{value} * {factor}");
                }
            }
        });
    }

    #[test]
    fn saturates_and_rounds_to_even_on_every_level() {
        let values = [65504.0, 65519.9, 65520.0, 1e38, -1e38, 2049.0, 2051.0, 3e-8, 2.9e-8, 8.9e-8];
        levels_and_lengths(|kernels, x| {
            let x: Vec<f32> = values.iter().copied().cycle().take(x.len()).collect();
            let mut codes = vec![[0; 2]; x.len()];
            kernels.narrow_f16(&x, 1.0, &mut codes);
            for (value, code) in x.iter().zip(&codes) {
                let code = f16::from_le_bytes(*code);
                assert!(code.is_finite());
                assert_eq!(code, f16::from_f32(value.clamp(-MAX, MAX)), "{value}");
            }
        });
    }
}
