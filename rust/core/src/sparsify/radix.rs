//! The k-th largest magnitude by histograms over its bits, most significant digit first.
//!
//! Magnitudes order like their bits. Three digits of 11, 10 and 10 bits cover the 31 that are not
//! the sign: the first is the exponent and three bits of the mantissa.

use super::bracket;
use crate::simd::Kernels;
use crate::{Result, allocate};

/// Shift and width of each digit.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];

/// Bins of the widest digit.
const BINS: usize = 1 << 11;

/// A search for the k-th largest of a set of magnitudes, a digit at a time.
#[derive(Debug, Clone)]
pub(super) struct Search {
    /// Digits found so far, in place; zeros below.
    prefix: u32,
    /// How many digits were found.
    found: usize,
    /// The rank wanted among the magnitudes that begin with the prefix.
    rank: u64,
    /// How many magnitudes begin with the prefix.
    inside: u64,
    histogram: [u32; BINS],
}

impl Search {
    /// A search for the `rank`-th largest, counted from 1.
    pub fn new(rank: u64) -> Self {
        Self { prefix: 0, found: 0, rank, inside: u64::MAX, histogram: [0; BINS] }
    }

    /// Counts a block of values by the digit that is searched next.
    pub fn count(&mut self, values: &[f32]) {
        let (shift, width) = DIGITS[self.found];
        let mask = (1 << width) - 1;
        // What must agree with the prefix: the digits above this one.
        let above = shift + width;
        let prefix = self.prefix >> above;
        for value in values {
            let bits = value.to_bits() & 0x7fff_ffff;
            let agrees = bits >> above == prefix;
            self.histogram[(bits >> shift & mask) as usize] += u32::from(agrees);
        }
    }

    /// Ends a round of counting: finds the digit. If fewer than the rank were counted, it is zero.
    pub fn next_digit(&mut self) {
        let (shift, width) = DIGITS[self.found];
        let mut digit = 1 << width;
        let mut counted = 0;
        while digit > 0 {
            digit -= 1;
            let here = u64::from(self.histogram[digit]);
            if counted + here >= self.rank || digit == 0 {
                self.inside = here;
                break;
            }
            counted += here;
        }
        self.rank = self.rank.saturating_sub(counted);
        self.prefix |= (digit as u32) << shift;
        self.found += 1;
        self.histogram.fill(0);
    }

    /// Whether all digits are found.
    pub fn is_done(&self) -> bool {
        self.found == DIGITS.len()
    }

    /// The least bits that a magnitude with the digits found so far can have; the k-th largest
    /// magnitude itself once the search is done.
    pub fn bits(&self) -> u32 {
        self.prefix
    }

    /// How many magnitudes have the digits found so far.
    pub fn inside(&self) -> u64 {
        self.inside
    }

    /// How many of [`Search::inside`] belong to the largest.
    pub fn rank(&self) -> u64 {
        self.rank
    }
}

/// The k-th largest of a list of magnitudes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kth {
    /// Its bits.
    pub bits: u32,
    /// How many magnitudes equal it.
    pub equal: u64,
    /// How many of those belong to the k largest.
    pub ties: u64,
}

/// Values up to which a plain selection is faster than histograms.
const SMALL: usize = 4096;

/// The `rank`-th largest magnitude of `values`, which are at least as many. `scratch` is memory to
/// use again.
///
/// Of a long list it is bracketed by a sample. Where that has misled, and of lists in between, one
/// histogram over the range, which for candidates of a bound is narrow, leaves a few in a thousand of
/// the values; these are taken out and selected from.
pub(super) fn find(
    values: &[f32],
    rank: u64,
    kernels: &Kernels,
    scratch: &mut Vec<u32>,
) -> Result<Kth> {
    let bracketed = || bracket::find(values, rank, kernels, scratch);
    if let Some(kth) = (values.len() >= bracket::LONG).then(bracketed).flatten() {
        return Ok(kth);
    }
    let magnitudes = values.iter().map(|value| value.to_bits() & 0x7fff_ffff);
    scratch.clear();
    if values.len() <= SMALL {
        allocate::reserve(scratch, values.len())?;
        scratch.extend(magnitudes);
        return Ok(pick(scratch, rank));
    }
    let lowest = magnitudes.clone().fold(u32::MAX, u32::min);
    let highest = kernels.peak(values);
    // The bin of each magnitude: bits above the lowest, as fine as the bins allow.
    let width = u32::BITS - (highest - lowest).leading_zeros();
    let shift = width.saturating_sub(BINS.trailing_zeros());
    let mut histograms = [[0_u32; BINS]; 2];
    let [even, odd] = &mut histograms;
    let bin = |value: f32| (((value.to_bits() & 0x7fff_ffff) - lowest) >> shift) as usize;
    let (pairs, rest) = values.as_chunks();
    for &[first, second] in pairs {
        even[bin(first)] += 1;
        odd[bin(second)] += 1;
    }
    for &value in rest {
        even[bin(value)] += 1;
    }
    let (mut target, mut above) = (BINS - 1, 0);
    let inside = loop {
        let here = u64::from(histograms[0][target]) + u64::from(histograms[1][target]);
        if above + here >= rank || target == 0 {
            break here;
        }
        above += here;
        target -= 1;
    };
    allocate::reserve(scratch, inside as usize)?;
    scratch.extend(magnitudes.filter(|bits| ((bits - lowest) >> shift) as usize == target));
    Ok(pick(scratch, rank - above))
}

/// The same of a few magnitudes, whose order is lost.
pub(super) fn pick(magnitudes: &mut [u32], rank: u64) -> Kth {
    let (larger, &mut bits, smaller) =
        magnitudes.select_nth_unstable_by(rank as usize - 1, |a, b| b.cmp(a));
    let count = |side: &[u32]| side.iter().filter(|other| **other == bits).count() as u64;
    let ties = count(larger) + 1;
    Kth { bits, equal: ties + count(smaller), ties }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::tensor;

    #[test]
    fn finds_what_sorting_finds() {
        for len in [1, 2, 17, 1000, 5000, 20_000] {
            let x = tensor(len, len as u64);
            let mut bits: Vec<u32> = x.iter().map(|v| v.abs().to_bits()).collect();
            bits.sort_unstable_by(|a, b| b.cmp(a));
            for rank in [1, 2, len / 3, len / 2, len - 1, len] {
                if rank == 0 || rank > len {
                    continue;
                }
                let expected = bits[rank - 1];
                let count = |bits: &[u32]| bits.iter().filter(|b| **b == expected).count() as u64;
                let (equal, ties) = (count(&bits), count(&bits[..rank]));
                let found = find(&x, rank as u64, Kernels::current(), &mut Vec::new()).unwrap();
                assert_eq!(found, Kth { bits: expected, equal, ties }, "{rank} of {len}");
            }
        }
    }
}
