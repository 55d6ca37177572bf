//! Rice: gaps between positions, the low `bits` of each in binary, the rest in unary.
//!
//! A gap is the number of positions skipped: `index - previous - 1`, counted from -1. In the unary
//! vector each entry is `gap >> bits` zeros and a one.

use super::bits::{self, Fields, Ones, OnesReader};
use super::{MAX_LOW_BITS, Result};
use crate::Error;

/// Widths tried, in one pass over the indices.
const TRIED: usize = 3;

/// Lengths in bytes over all supports of `count >= 1` positions out of `numel >= count`.
pub(super) fn lengths(bits: u8, numel: u64, count: u64) -> std::ops::RangeInclusive<u64> {
    let least = count * (u64::from(bits) + 1);
    least.div_ceil(8)..=(least + ((numel - count) >> bits)).div_ceil(8)
}

/// The width with the fewest bits (the smaller one of two equals) and the length in bytes.
///
/// One more low bit costs `count` bits and saves `ceil(x / 2)` for each gap, where `x = gap >> width`.
/// With `m` the mean gap, that saves
///
/// * more than it costs while `2^width < m / 3`, since `x > gap / 2^width - 1`, and
/// * no more than it costs once `2^width >= m`, since `ceil(x / 2) <= x <= gap / 2^width`.
///
/// So the best is one of three widths, whatever the gaps are.
pub(super) fn best(indices: &[u32]) -> (u8, usize) {
    let Some(&last) = indices.last() else {
        return (0, 0);
    };
    let count = indices.len() as u64;
    let mean_gap = (u64::from(last) + 1).saturating_sub(count) / count;
    let first = (mean_gap.max(1).ilog2() as u8).saturating_sub(1).min(MAX_LOW_BITS - 2);
    let zeros = unary_zeros(indices, first);
    let cost = |i: usize| count * (u64::from(first) + i as u64 + 1) + u64::from(zeros[i]);
    let least = (1..TRIED).fold(0, |best, i| if cost(i) < cost(best) { i } else { best });
    (first + least as u8, cost(least).div_ceil(8) as usize)
}

/// Zeros in the unary vector for each of the widths from `first` on.
///
/// No sum exceeds that of the gaps, which is below 2^32.
fn unary_zeros(indices: &[u32], first: u8) -> [u32; TRIED] {
    let mut sums = [0_u32; TRIED];
    let mut add = |gap: u32| {
        let mut zeros = gap >> first;
        for sum in &mut sums {
            *sum = sum.wrapping_add(zeros);
            zeros >>= 1;
        }
    };
    if let Some(&index) = indices.first() {
        add(index);
    }
    for pair in indices.windows(2) {
        add(pair[1].wrapping_sub(pair[0]).wrapping_sub(1));
    }
    sums
}

/// The number of positions skipped before each one.
fn gaps(indices: &[u32]) -> impl Iterator<Item = u32> {
    let mut next = 0_u32;
    indices.iter().map(move |&index| {
        let gap = index.wrapping_sub(next);
        next = index.wrapping_add(1);
        gap
    })
}

pub(super) fn encode(bits: u8, indices: &[u32], out: &mut [u8]) {
    let mask = (1_u32 << bits) - 1;
    bits::write_fields(out, bits, gaps(indices).map(|gap| gap & mask));
    let mut free = 0;
    let positions = gaps(indices).map(|gap| {
        let position = free + (gap >> bits) as usize;
        free = position + 1;
        position
    });
    bits::write_ones(out, indices.len() * usize::from(bits), positions);
}

/// Reads positions off a section.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    upper: OnesReader<'a>,
    lows: Fields<'a>,
    bits: u8,
    numel: u64,
    /// Positions read so far, the first bit of the unary vector after them, and one more than the
    /// last.
    rank: usize,
    free: usize,
    next: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bits: u8, bytes: &'a [u8], numel: u64, count: u64) -> Result<Self> {
        let low_bits = count * u64::from(bits);
        let upper = Ones::new(bytes, low_bits as usize);
        let (found, end) = upper.count_and_end();
        if found != count {
            return Err(Error::corrupt(format!("Rice code holds {found} positions, not {count}")));
        }
        if (low_bits + end).div_ceil(8) != bytes.len() as u64 {
            return Err(Error::corrupt("Rice code is longer than its positions need"));
        }
        let (upper, lows) = (upper.reader(), Fields::new(bytes, bits));
        Ok(Self { upper, lows, bits, numel, rank: 0, free: 0, next: 0 })
    }

    pub(super) fn read(&mut self, out: &mut [u32]) -> Result<()> {
        let (lows, bits) = (self.lows, self.bits);
        // The length was checked: high parts sum to at most `numel >> bits` and a byte of padding,
        // and low parts to less than 2^63, so that nothing overflows.
        let (mut rank, mut free, mut next) = (self.rank, self.free, self.next);
        let mut slots = out.iter_mut();
        self.upper.read(slots.len(), |position| {
            let index = next + (((position - free) as u64) << bits) + u64::from(lows.get(rank));
            free = position + 1;
            next = index + 1;
            rank += 1;
            if let Some(slot) = slots.next() {
                *slot = index as u32;
            }
        });
        (self.rank, self.free, self.next) = (rank, free, next);
        if next > self.numel {
            return Err(Error::corrupt("the last position is beyond the tensor"));
        }
        Ok(())
    }
}
