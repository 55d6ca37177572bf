//! Other element types to float32, element by element: exact from the narrow ones, rounded to
//! nearest even from float64 (which becomes infinite beyond the range of float32).

pub mod from_f16;

/// float64 to float32.
pub mod from_f64 {
    use crate::simd::stamp::stamp;

    #[inline(always)]
    fn body(x: &[f64], out: &mut [f32]) {
        for (o, &v) in out.iter_mut().zip(x) {
            *o = v as f32;
        }
    }

    stamp!(fn(x: &[f64], out: &mut [f32]) => body);
}

/// bfloat16 to float32.
pub mod from_bf16 {
    use crate::simd::stamp::stamp;
    use half::bf16;

    #[inline(always)]
    fn body(x: &[bf16], out: &mut [f32]) {
        for (o, v) in out.iter_mut().zip(x) {
            *o = f32::from_bits(u32::from(v.to_bits()) << 16);
        }
    }

    stamp!(fn(x: &[bf16], out: &mut [f32]) => body);
}

#[cfg(test)]
mod tests {
    use crate::simd::{Kernels, available_levels, testing::levels_and_lengths};
    use half::bf16;

    #[test]
    #[cfg_attr(miri, ignore = "it takes every code")]
    fn every_bfloat16_is_exact_on_every_level() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        for level in available_levels() {
            let mut out = vec![0.0; all.len()];
            Kernels::of(level).unwrap().widen_bf16(&all, &mut out);
            for (wide, narrow) in out.iter().zip(&all) {
                assert_eq!(wide.to_bits(), u32::from(narrow.to_bits()) << 16);
            }
        }
    }

    #[test]
    fn float64_rounds_to_nearest_even() {
        levels_and_lengths(|kernels, x| {
            let wide: Vec<f64> = x.iter().map(|&v| f64::from(v) * (1.0 + 1e-9) + 1e-300).collect();
            let mut out = vec![0.0; wide.len()];
            kernels.widen_f64(&wide, &mut out);
            for (o, w) in out.iter().zip(&wide) {
                assert_eq!(o.to_bits(), (*w as f32).to_bits());
            }
        });
    }
}
