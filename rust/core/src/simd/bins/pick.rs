//! The same for elements of one bin whose largest magnitude is known.
//!
//! `pick(gradient, sums, ahead, least, picked)` writes each sum for which `|sum + ahead * gradient|` is
//! at least `least` to `picked`, zero for all others, and zeros alone if `least` is zero.

use crate::simd::stamp::stamp;

#[inline(always)]
pub(super) fn body(gradient: &[f32], sums: &[f32], ahead: f32, least: f32, picked: &mut [f32]) {
    if least == 0.0 {
        picked.fill(0.0);
        return;
    }
    for ((&gradient, &sum), picked) in gradient.iter().zip(sums).zip(picked) {
        *picked = one(gradient, sum, ahead, least);
    }
}

/// The sum if it is picked. By a mask: a branch would be mispredicted where many are.
#[inline(always)]
fn one(gradient: f32, sum: f32, ahead: f32, least: f32) -> f32 {
    let large = (sum + ahead * gradient).abs() >= least;
    f32::from_bits(sum.to_bits() & u32::from(large).wrapping_neg())
}

stamp!(fn(gradient: &[f32], sums: &[f32], ahead: f32, least: f32, picked: &mut [f32]) => body);

#[cfg(test)]
mod tests {
    use crate::simd::testing::{levels_and_lengths, tensor};

    #[test]
    fn equals_the_kernel_over_one_bin() {
        levels_and_lengths(|kernels, sums| {
            let gradient = tensor(sums.len(), 19);
            let (mut peaks, mut expected) = ([0], vec![0.0; sums.len()]);
            let bin = sums.len().max(1);
            kernels.bins(&gradient, &sums, 1.0, bin, &mut peaks, &mut expected);
            let mut picked = vec![f32::NAN; sums.len()];
            kernels.pick(&gradient, &sums, 1.0, f32::from_bits(peaks[0]), &mut picked);
            assert_eq!(picked, expected, "{:?}", kernels.level());
        });
    }
}
