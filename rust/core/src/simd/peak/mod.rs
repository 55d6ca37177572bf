//! The largest magnitude of a block, as the bits of a float32 without its sign.
//!
//! Magnitudes order like their bits, infinity and NaN above every finite value: a result of
//! `0x7f80_0000` or more says that the block holds a non-finite value.

use super::LANES;
use super::stamp::stamp;

/// The bits of positive infinity: the least that is not finite.
pub const NON_FINITE: u32 = 0x7f80_0000;

#[inline(always)]
fn body(x: &[f32]) -> u32 {
    let mut lanes = [0u32; LANES];
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            lanes[i] = lanes[i].max(group[i].to_bits() & 0x7fff_ffff);
        }
    }
    let mut peak = 0;
    for lane in lanes {
        peak = peak.max(lane);
    }
    for value in rest {
        peak = peak.max(value.to_bits() & 0x7fff_ffff);
    }
    peak
}

stamp!(fn(x: &[f32]) -> u32 => body);

#[cfg(test)]
mod tests {
    use super::NON_FINITE;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_the_maximum_and_shows_what_is_not_finite() {
        levels_and_lengths(|kernels, mut x| {
            let expected = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            assert_eq!((kernels.peak)(&x), expected.to_bits());
            for i in 0..x.len() {
                let kept = x[i];
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    x[i] = bad;
                    assert!((kernels.peak)(&x) >= NON_FINITE);
                }
                x[i] = kept;
            }
        });
    }
}
