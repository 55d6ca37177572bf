//! The k-th largest magnitude of a long list, between two magnitudes that a sample gives.
//!
//! R. Floyd and R. Rivest, "Expected Time Bounds for Selection", CACM 1975: two order
//! statistics of the sample bracket the wanted one, one pass extracts the magnitudes inside the
//! bracket and counts those above it, and the search continues among these few. The counts show if
//! the bracket missed, so a bad sample cannot change the result.

use super::radix::{Kth, pick};
use crate::allocate;
use crate::scan::jitter;
use crate::simd::above::SLACK;
use crate::simd::{BLOCK, Kernels};

/// Values from which on a sample is worth it.
pub(super) const LONG: usize = 1 << 15;

/// Values looked at.
const SAMPLE: usize = 4096;

/// Four standard deviations of a rank in the sample, at most: that many to either side.
const MARGIN: usize = 128;

/// The `rank`-th largest of at least [`LONG`] magnitudes; none if the sample has misled, or left
/// more than a quarter of the values inside. `scratch` is memory to use again.
pub(super) fn find(
    values: &[f32],
    rank: u64,
    kernels: &Kernels,
    scratch: &mut Vec<u32>,
) -> Option<Kth> {
    // Longer it may be: what is in there already is not filled with zeros again.
    // Without memory for it there is another way.
    let len = (values.len() / 4 + BLOCK + SLACK).max(scratch.len());
    allocate::resize(scratch, len).ok()?;
    let (low, high) = bracket(values, rank, &mut scratch[..SAMPLE]);
    let capacity = values.len() / 4;
    let (mut inside, mut above) = (0, 0);
    for block in values.chunks(BLOCK) {
        let found = kernels.window(block, low, high, &mut scratch[inside..]);
        inside += found.0;
        above += found.1 as u64;
        if inside > capacity {
            return None;
        }
    }
    let within = rank.checked_sub(above).filter(|within| (1..=inside as u64).contains(within))?;
    Some(pick(&mut scratch[..inside], within))
}

/// Bits of two magnitudes: the one wanted is probably above the first and not above the second.
fn bracket(values: &[f32], rank: u64, sample: &mut [u32]) -> (u32, u32) {
    let interval = values.len() / SAMPLE;
    let place = |j: usize| j * interval + jitter(j, interval);
    for (j, bits) in sample.iter_mut().enumerate() {
        *bits = values[place(j)].to_bits() & 0x7fff_ffff;
    }
    let expected = (rank as f64 * SAMPLE as f64 / values.len() as f64) as usize;
    let upper = expected.saturating_sub(MARGIN);
    let lower = (expected + MARGIN).min(SAMPLE - 1);
    let descending = |a: &u32, b: &u32| b.cmp(a);
    let (_, &mut high, rest) = sample.select_nth_unstable_by(upper, descending);
    let (_, &mut low, _) = rest.select_nth_unstable_by(lower - upper - 1, descending);
    // At either end of the ranks there may be more beyond the sample. What equals the lower one is
    // inside.
    let high = if upper == 0 { 0x7fff_ffff } else { high };
    (if lower == SAMPLE - 1 { 0 } else { low.saturating_sub(1) }, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernels, available_levels, testing::tensor};

    #[test]
    fn finds_what_sorting_finds_or_nothing() {
        for len in [LONG, 100_003] {
            let x = tensor(len, len as u64);
            let mut bits: Vec<u32> = x.iter().map(|v| v.abs().to_bits()).collect();
            bits.sort_unstable_by(|a, b| b.cmp(a));
            let mut found = 0;
            for rank in [1, 2, 100, len / 3, len / 2, len - 1, len] {
                let expected = bits[rank - 1];
                let count = |bits: &[u32]| bits.iter().filter(|b| **b == expected).count() as u64;
                let expected =
                    Kth { bits: expected, equal: count(&bits), ties: count(&bits[..rank]) };
                for level in available_levels() {
                    let kernels = Kernels::of(level).unwrap();
                    let kth = find(&x, rank as u64, kernels, &mut Vec::new());
                    assert!(kth.is_none_or(|kth| kth == expected), "{rank} of {len}");
                    found += usize::from(kth.is_some());
                }
            }
            assert!(found > 0);
        }
    }

    #[test]
    fn gives_up_where_most_are_equal() {
        assert_eq!(find(&vec![1.0; LONG], 5, Kernels::current(), &mut Vec::new()), None);
    }

    #[test]
    fn is_not_misled_by_a_trend() {
        let x: Vec<f32> = (0..LONG).map(|i| (i % 4096) as f32).collect();
        let kth = find(&x, 9, Kernels::current(), &mut Vec::new());
        assert!(kth.is_none_or(|kth| kth.bits == 4094_f32.to_bits()));
    }
}
