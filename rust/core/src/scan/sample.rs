//! A magnitude that about so many entries exceed, guessed from a sample.

use crate::simd::peak::NON_FINITE;

/// How many entries are looked at.
const SAMPLE: usize = 16_384;

/// Most entries that are looked at: one of each interval, and intervals are rounded down.
pub(crate) const MOST_LOOKED_AT: usize = 2 * SAMPLE;

/// A magnitude that an estimated `wanted` of the `len` entries exceed, from a sample of one entry
/// in each of equal intervals. `scratch` is memory to use again.
///
/// A guess alone: what is selected with its help is checked, so it never changes a result.
pub(crate) fn magnitude_above(
    len: usize,
    wanted: f64,
    at: impl Fn(usize) -> f32,
    scratch: &mut Vec<u32>,
) -> f32 {
    let interval = (len / SAMPLE).max(1);
    let looked_at = len / interval;
    // At least four of the sample are above the guess: with fewer it would be mere chance.
    let rank = (wanted / interval as f64).ceil().max(4.0) as usize;
    if looked_at == 0 || rank >= looked_at {
        return 0.0;
    }
    scratch.clear();
    scratch.extend((0..looked_at).map(|j| {
        let bits = at(j * interval + jitter(j, interval)).to_bits() & 0x7fff_ffff;
        // What is not finite is reported by the scan; here it must not hide the rest.
        if bits >= NON_FINITE { 0 } else { bits }
    }));
    let (_, bits, _) = scratch.select_nth_unstable_by(rank, |a, b| b.cmp(a));
    f32::from_bits(*bits)
}

/// A fixed pseudo-random place in the interval, so that rows and columns do not resonate.
pub(crate) fn jitter(j: usize, interval: usize) -> usize {
    let mixed = (j as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((mixed * interval as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_near_the_quantile_asked_for() {
        let mixed = |i: u64| {
            i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 17)
        };
        let x: Vec<f32> = (0..1_000_000).map(|i| (mixed(mixed(i)) >> 40) as f32).collect();
        let mut scratch = Vec::new();
        for wanted in [2000.0, 10_000.0, 100_000.0] {
            let bound = magnitude_above(x.len(), wanted, |i| x[i], &mut scratch);
            let above = x.iter().filter(|v| **v > bound).count() as f64;
            assert!((0.4..2.5).contains(&(above / wanted)), "{above} instead of {wanted}");
        }
    }

    #[test]
    fn small_tensors_and_large_wishes_give_zero() {
        let mut scratch = Vec::new();
        assert_eq!(magnitude_above(0, 1.0, |_| 1.0, &mut scratch), 0.0);
        assert_eq!(magnitude_above(3, 1.0, |_| 1.0, &mut scratch), 0.0);
        assert_eq!(magnitude_above(100_000, 1e5, |_| 1.0, &mut scratch), 0.0);
    }

    #[test]
    fn places_stay_inside_their_interval() {
        for interval in [1, 2, 3, 61, 1525, 262_144] {
            assert!((0..SAMPLE).all(|j| jitter(j, interval) < interval));
        }
    }
}
