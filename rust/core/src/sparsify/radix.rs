//! The k-th largest magnitude by histograms over its bits, most significant digit first.
//!
//! Magnitudes order like their bits. Three digits of 11, 10 and 10 bits cover the 31 that are not
//! the sign: the first is the exponent and three bits of the mantissa.

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
    /// Two, for even and odd positions: equal neighbours need not wait for each other's count.
    histograms: Box<[[u32; BINS]; 2]>,
}

impl Search {
    /// A search for the `rank`-th largest, counted from 1.
    pub fn new(rank: u64) -> Self {
        Self { prefix: 0, found: 0, rank, inside: u64::MAX, histograms: Box::new([[0; BINS]; 2]) }
    }

    /// Counts a block of values by the digit that is searched next.
    pub fn count(&mut self, values: &[f32]) {
        let (shift, width) = DIGITS[self.found];
        let mask = (1 << width) - 1;
        // What must agree with the prefix: the digits above this one.
        let above = shift + width;
        let prefix = self.prefix >> above;
        let [even, odd] = &mut *self.histograms;
        let count = |histogram: &mut [u32; BINS], value: f32| {
            let bits = value.to_bits() & 0x7fff_ffff;
            let agrees = bits >> above == prefix;
            histogram[(bits >> shift & mask) as usize] += u32::from(agrees);
        };
        let (pairs, rest) = values.as_chunks();
        for &[first, second] in pairs {
            count(even, first);
            count(odd, second);
        }
        for &value in rest {
            count(even, value);
        }
    }

    /// Ends a round of counting: finds the digit. If fewer than the rank were counted, it is zero.
    pub fn next_digit(&mut self) {
        let (shift, width) = DIGITS[self.found];
        let mut digit = 1 << width;
        let mut counted = 0;
        while digit > 0 {
            digit -= 1;
            let here = self.histograms.iter().map(|counts| u64::from(counts[digit])).sum();
            if counted + here >= self.rank || digit == 0 {
                self.inside = here;
                break;
            }
            counted += here;
        }
        self.rank = self.rank.saturating_sub(counted);
        self.prefix |= (digit as u32) << shift;
        self.found += 1;
        self.histograms.as_flattened_mut().fill(0);
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

/// The `rank`-th largest magnitude of `values`, which are at least as many. `scratch` is memory to
/// use again.
///
/// One histogram finds the first digit; what has that digit, a few per cent as a rule, is taken out
/// and searched on its own.
pub(super) fn find(values: &[f32], rank: u64, scratch: &mut Vec<f32>) -> Kth {
    let mut search = Search::new(rank);
    search.count(values);
    search.next_digit();
    let (least, shift) = (search.bits(), DIGITS[0].0);
    scratch.clear();
    scratch.resize(search.inside() as usize + 1, 0.0);
    let mut taken = 0;
    for &value in values {
        let inside = (value.to_bits() & 0x7fff_ffff) >> shift == least >> shift;
        // Stored always, counted on a hit; one place more than there are hits.
        scratch[taken] = value;
        taken += usize::from(inside);
    }
    while !search.is_done() {
        search.count(&scratch[..taken]);
        search.next_digit();
    }
    Kth { bits: search.bits(), equal: search.inside(), ties: search.rank() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::tensor;

    #[test]
    fn finds_what_sorting_finds() {
        for len in [1, 2, 17, 1000, 20_000] {
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
                let found = find(&x, rank as u64, &mut Vec::new());
                assert_eq!(found, Kth { bits: expected, equal, ties }, "{rank} of {len}");
            }
        }
    }
}
