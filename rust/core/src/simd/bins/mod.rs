//! The test of AdaComp, bin by bin: which entries would matter as much as the largest of their bin
//! if the new gradient were added once more.
//!
//! `bins(gradient, sums, ahead, bin, peaks, picked)` looks at bins of `bin` elements, the last of which
//! may be shorter. It writes the bits of the largest magnitude of `sums` in each to `peaks`, and to
//! `picked` each sum for which `|sum + ahead * gradient|` is at least that large, zero for all others.
//! A bin of zeros has nothing to pick.

use super::peak;
use super::stamp::stamp;

pub mod pick;

#[inline(always)]
fn body(
    gradient: &[f32],
    sums: &[f32],
    ahead: f32,
    bin: usize,
    peaks: &mut [u32],
    picked: &mut [f32],
) {
    assert_eq!(gradient.len(), sums.len(), "a gradient for each sum");
    assert_eq!(picked.len(), sums.len(), "room for what is picked");
    let bins = gradient.chunks(bin).zip(sums.chunks(bin)).zip(picked.chunks_mut(bin));
    for (((gradient, sums), picked), highest) in bins.zip(peaks) {
        *highest = peak::body(sums);
        pick::body(gradient, sums, ahead, f32::from_bits(*highest), picked);
    }
}

stamp!(fn(gradient: &[f32], sums: &[f32], ahead: f32, bin: usize, peaks: &mut [u32],
    picked: &mut [f32]) => body);

#[cfg(test)]
mod tests {
    use crate::simd::testing::{levels_and_lengths, tensor};

    #[test]
    fn equals_the_definition_on_every_level() {
        levels_and_lengths(|kernels, mut sums| {
            let gradient = tensor(sums.len(), 17);
            let zeros = sums.len() / 3..sums.len() / 2;
            sums[zeros].fill(0.0);
            for bin in [1, 2, 7, 16, 50, 500] {
                for ahead in [0.0, 1.0, 0.5] {
                    let mut peaks = vec![u32::MAX; sums.len().div_ceil(bin)];
                    let mut picked = vec![f32::NAN; sums.len()];
                    kernels.bins(&gradient, &sums, ahead, bin, &mut peaks, &mut picked);
                    for (b, whole) in sums.chunks(bin).enumerate() {
                        let most = whole.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                        assert_eq!(f32::from_bits(peaks[b]), most);
                        for i in b * bin..b * bin + whole.len() {
                            let large = (sums[i] + ahead * gradient[i]).abs() >= most;
                            let expected = if large && most > 0.0 { sums[i] } else { 0.0 };
                            assert_eq!(picked[i], expected, "{:?} {bin} {i}", kernels.level());
                        }
                    }
                }
            }
        });
    }
}
