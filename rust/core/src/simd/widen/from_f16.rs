//! float16 to float32, exact: subnormals become normal, infinity stays infinite, NaN a quiet NaN.
//!
//! The kernel converts elements, [`decode`] the little-endian bytes of a frame's codes, each multiplied by
//! a factor.

use half::f16;
use half::slice::HalfFloatSliceExt;

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar as neon;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{run as avx2, run as avx512};

/// The `half` crate converts slices, in hardware where the target has it.
pub(in crate::simd) fn scalar(x: &[f16], out: &mut [f32]) {
    x.convert_to_f32_slice(out);
}

/// Codes of a frame.
pub(in crate::simd) mod decode {
    use half::f16;
    use half::slice::HalfFloatSliceExt;

    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{decode as avx2, decode as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    /// Codes at a time: their elements stay in the cache.
    const PART: usize = 256;

    pub(in crate::simd) fn scalar(codes: &[[u8; 2]], factor: f32, out: &mut [f32]) {
        let mut halves = [f16::ZERO; PART];
        for (codes, out) in codes.chunks(PART).zip(out.chunks_mut(PART)) {
            let halves = &mut halves[..codes.len()];
            for (half, code) in halves.iter_mut().zip(codes) {
                *half = f16::from_le_bytes(*code);
            }
            halves.convert_to_f32_slice(out);
            for value in out {
                *value *= factor;
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86 {
    //! F16C, eight lanes at a time; AVX-512 would convert sixteen and store as slowly.

    use half::f16;
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm256_cvtph_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_ps,
    };

    #[target_feature(enable = "avx,f16c")]
    pub(in crate::simd) fn run(x: &[f16], out: &mut [f32]) {
        // Elements are little-endian here, and a multiplication by one changes no bit.
        decode(bytemuck::cast_slice(x), 1.0, out);
    }

    #[target_feature(enable = "avx,f16c")]
    pub(in crate::simd) fn decode(codes: &[[u8; 2]], factor: f32, out: &mut [f32]) {
        assert_eq!(codes.len(), out.len(), "a value for each code");
        let scale = _mm256_set1_ps(factor);
        let (whole, rest) = codes.as_chunks::<8>();
        let (targets, end) = out.as_chunks_mut::<8>();
        for (block, target) in whole.iter().zip(targets) {
            // SAFETY: a block is eight codes of two bytes, a target eight values of four.
            unsafe {
                let halves = _mm_loadu_si128(block.as_ptr().cast());
                let scaled = _mm256_mul_ps(_mm256_cvtph_ps(halves), scale);
                _mm256_storeu_ps(target.as_mut_ptr(), scaled);
            }
        }
        super::decode::scalar(rest, factor, end);
    }
}

#[cfg(test)]
mod tests {
    use crate::simd::{Kernels, available_levels};
    use half::f16;

    /// Every code, after `skip` others: so that blocks and what is left of them begin anywhere.
    fn codes(skip: u16) -> Vec<f16> {
        (0..=u16::MAX).map(|code| f16::from_bits(code.wrapping_sub(skip))).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes every code")]
    fn every_code_is_exact_on_every_level() {
        for level in available_levels() {
            let kernels = Kernels::of(level).unwrap();
            for skip in 0..9 {
                let all = &codes(skip)[usize::from(skip)..];
                let mut out = vec![0.0; all.len()];
                kernels.widen_f16(all, &mut out);
                for (wide, half) in out.iter().zip(all) {
                    assert_eq!(wide.to_bits(), half.to_f32().to_bits(), "{:#x}", half.to_bits());
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes every code")]
    fn codes_are_multiplied_on_every_level() {
        for level in available_levels() {
            let kernels = Kernels::of(level).unwrap();
            let codes: Vec<_> = codes(0).into_iter().map(f16::to_le_bytes).collect();
            for factor in [1.0, 0.25, f32::MIN_POSITIVE, 2f32.powi(127)] {
                for len in (0..=130).chain([codes.len()]) {
                    let codes = &codes[codes.len() - len..];
                    let mut out = vec![0.0; len];
                    kernels.decode_f16(codes, factor, &mut out);
                    for (value, code) in out.iter().zip(codes) {
                        let expected = f16::from_le_bytes(*code).to_f32() * factor;
                        assert_eq!(value.to_bits(), expected.to_bits(), "{code:?} * {factor}");
                    }
                }
            }
        }
    }
}
