//! `out[i] = gradient[i] + decay * residual[i]`, each operation rounded to float32 on its own, and zero
//! where that is below the smallest normal number.
//!
//! The three slices have the same length.

use super::normal_or_zero;
use super::stamp::stamp;

#[inline(always)]
fn body(out: &mut [f32], gradient: &[f32], residual: &[f32], decay: f32) {
    for ((o, &g), &r) in out.iter_mut().zip(gradient).zip(residual) {
        *o = normal_or_zero(g + decay * r);
    }
}

stamp!(fn(out: &mut [f32], gradient: &[f32], residual: &[f32], decay: f32) => body);

/// `out[i] += scale * values[i]`, rounded as often, whatever that is.
pub(in crate::simd) mod scaled {
    use super::stamp;

    #[inline(always)]
    fn body(out: &mut [f32], values: &[f32], scale: f32) {
        for (o, &v) in out.iter_mut().zip(values) {
            *o += v * scale;
        }
    }

    stamp!(fn(out: &mut [f32], values: &[f32], scale: f32) => body);
}

#[cfg(test)]
mod tests {
    use crate::reference::kept;
    use crate::simd::testing::{levels_and_lengths, tensor};

    #[test]
    fn equals_two_rounded_operations_on_every_level() {
        levels_and_lengths(|kernels, gradient| {
            let residual = tensor(gradient.len(), 99);
            for decay in [1.0f32, 0.9, 0.0] {
                let mut out = vec![f32::NAN; gradient.len()];
                kernels.add(&mut out, &gradient, &residual, decay);
                for i in 0..out.len() {
                    let product = decay * residual[i];
                    let expected = kept(gradient[i] + product);
                    assert_eq!(out[i].to_bits(), expected.to_bits(), "{:?} {i}", kernels.level());
                }
                let mut sum = gradient.clone();
                kernels.add_scaled(&mut sum, &residual, decay);
                for i in 0..sum.len() {
                    let expected = gradient[i] + residual[i] * decay;
                    assert_eq!(sum[i].to_bits(), expected.to_bits(), "{:?} {i}", kernels.level());
                }
            }
        });
    }
}
