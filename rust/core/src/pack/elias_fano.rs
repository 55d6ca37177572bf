//! Elias-Fano: the `low_bits` of each position in binary, the rest as one unary vector.
//!
//! Bit `(index >> low_bits) + i` of the vector is set for the `i`-th position, so that the vector
//! has `count + ((numel - 1) >> low_bits)` bits, `count` of them set.

use super::bits::{self, Fields, Ones, OnesReader};
use super::{MAX_LOW_BITS, Result};
use crate::Error;

/// Exact length in bytes, for `count >= 1`.
pub(super) fn len(low_bits: u8, numel: u64, count: u64) -> u64 {
    (count * u64::from(low_bits) + upper_bits(low_bits, numel, count)).div_ceil(8)
}

fn upper_bits(low_bits: u8, numel: u64, count: u64) -> u64 {
    count + (numel.saturating_sub(1) >> low_bits)
}

/// The width with the fewest bits (the smaller one of two equals) and the length in bytes.
///
/// One more low bit costs `count` bits and saves `ceil(x / 2)`, where `x` is how often the vector
/// steps over a zero now. The cost is therefore convex in the width, and its least point is the
/// first width at which `x` is at most `2 * count`.
pub(super) fn best(numel: u64, count: u64) -> (u8, usize) {
    if count == 0 {
        return (0, 0);
    }
    let steps = |width: u8| numel.saturating_sub(1) >> width;
    let width = (0..MAX_LOW_BITS).find(|&w| steps(w) <= 2 * count).unwrap_or(MAX_LOW_BITS);
    (width, len(width, numel, count) as usize)
}

pub(super) fn encode(low_bits: u8, indices: &[u32], out: &mut [u8]) {
    let mask = (1_u32 << low_bits) - 1;
    bits::write_fields(out, low_bits, indices.iter().map(|&i| i & mask));
    let steps = indices.iter().map(|&i| (i >> low_bits) as usize);
    let positions = steps.enumerate().map(|(rank, high)| high + rank);
    bits::write_ones(out, indices.len() * usize::from(low_bits), positions);
}

/// Reads positions off a section.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    upper: OnesReader<'a>,
    lows: Fields<'a>,
    low_bits: u8,
    numel: u64,
    /// Positions read so far, and one more than the last.
    rank: usize,
    next: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(low_bits: u8, bytes: &'a [u8], numel: u64, count: u64) -> Result<Self> {
        let upper = Ones::new(bytes, count as usize * usize::from(low_bits));
        let (found, end) = upper.count_and_end();
        if found != count {
            return Err(Error::corrupt(format!("Elias-Fano holds {found} positions, not {count}")));
        }
        if end > upper_bits(low_bits, numel, count) {
            return Err(Error::corrupt("Elias-Fano padding is not zero"));
        }
        let (upper, lows) = (upper.reader(), Fields::new(bytes, low_bits));
        Ok(Self { upper, lows, low_bits, numel, rank: 0, next: 0 })
    }

    pub(super) fn read(&mut self, out: &mut [u32]) -> Result<()> {
        let (lows, low_bits) = (self.lows, self.low_bits);
        let (mut rank, mut next, mut ascending) = (self.rank, self.next, true);
        let mut slots = out.iter_mut();
        self.upper.read(slots.len(), |position| {
            // High parts are at most (numel - 1) >> low_bits, so that the position fits 32 bits.
            let index = (((position - rank) as u32) << low_bits) | lows.get(rank);
            ascending &= u64::from(index) >= next;
            next = u64::from(index) + 1;
            rank += 1;
            if let Some(slot) = slots.next() {
                *slot = index;
            }
        });
        (self.rank, self.next) = (rank, next);
        if !ascending {
            return Err(Error::corrupt("positions do not ascend"));
        }
        if next > self.numel {
            return Err(Error::corrupt("the last position is beyond the tensor"));
        }
        Ok(())
    }
}
