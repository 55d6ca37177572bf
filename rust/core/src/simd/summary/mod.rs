//! Sums over values and their squares, those below zero apart, and the largest magnitude: what the
//! scales of quantizers follow from.
//!
//! Sums are float64 over sixteen lanes; element `i` of a block goes to lane `i % 16`. A square of a
//! float32 is exact in float64, and cannot overflow it. Where a value is not finite, the peak shows
//! it and the sums mean nothing.

use super::LANES;
use super::stamp::stamp;

/// Running sums; one set for each chunk of a group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes {
    /// Of the values that are not below zero.
    pub above: [f64; LANES],
    /// Of the values below zero.
    pub below: [f64; LANES],
    /// Of the squares.
    pub squares: [f64; LANES],
    /// How many values there are.
    pub count: u64,
    /// How many of them are below zero.
    pub negatives: u64,
    /// Bits of the largest magnitude.
    pub peak: u32,
}

/// Of all that there is to know, or of values by their sides alone, or of squares alone: float64 is
/// what a summary spends its time on.
#[inline(always)]
fn body<const SIDES: bool, const SQUARES: bool>(x: &[f32], lanes: &mut Lanes) {
    let Lanes { mut above, mut below, mut squares, .. } = *lanes;
    let (mut negatives, mut peaks) = ([0_u32; LANES], [0_u32; LANES]);
    let mut step = |i: usize, x: f32| {
        let wide = f64::from(x);
        let is_below = x < 0.0;
        if SIDES {
            above[i] += if is_below { 0.0 } else { wide };
            below[i] += if is_below { wide } else { 0.0 };
            negatives[i] += u32::from(is_below);
        }
        if SQUARES {
            squares[i] += wide * wide;
        }
        peaks[i] = peaks[i].max(x.to_bits() & 0x7FFF_FFFF);
    };
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for (i, &x) in group.iter().enumerate() {
            step(i, x);
        }
    }
    for (i, &x) in rest.iter().enumerate() {
        step(i, x);
    }
    *lanes = Lanes {
        above,
        below,
        squares,
        count: lanes.count + x.len() as u64,
        negatives: lanes.negatives + negatives.iter().map(|&n| u64::from(n)).sum::<u64>(),
        peak: peaks.iter().fold(lanes.peak, |peak, &p| peak.max(p)),
    };
}

#[inline(always)]
fn both(x: &[f32], lanes: &mut Lanes) {
    body::<true, true>(x, lanes);
}

#[inline(always)]
fn by_sides(x: &[f32], lanes: &mut Lanes) {
    body::<true, false>(x, lanes);
}

#[inline(always)]
fn of_squares(x: &[f32], lanes: &mut Lanes) {
    body::<false, true>(x, lanes);
}

stamp!(fn(x: &[f32], lanes: &mut Lanes) => both);

/// The same without squares, which stay what they were.
pub(in crate::simd) mod sides {
    use super::{Lanes, by_sides, stamp};
    stamp!(fn(x: &[f32], lanes: &mut Lanes) => by_sides);
}

/// The same of squares, count and peak alone.
pub(in crate::simd) mod squares {
    use super::{Lanes, of_squares, stamp};
    stamp!(fn(x: &[f32], lanes: &mut Lanes) => of_squares);
}

#[cfg(test)]
mod tests {
    use super::{LANES, Lanes};
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_adding_one_by_one() {
        levels_and_lengths(|kernels, x| {
            let mut expected = Lanes { count: x.len() as u64, ..Lanes::default() };
            for (i, &v) in x.iter().enumerate() {
                let side = if v < 0.0 { &mut expected.below } else { &mut expected.above };
                side[i % LANES] += f64::from(v);
                expected.squares[i % LANES] += f64::from(v) * f64::from(v);
                expected.negatives += u64::from(v < 0.0);
                expected.peak = expected.peak.max(v.abs().to_bits());
            }
            let mut lanes = Lanes::default();
            (kernels.summary)(&x, &mut lanes);
            assert_eq!(lanes, expected, "{:?} {}", kernels.level, x.len());
            let mut parts = Lanes::default();
            (kernels.sides)(&x, &mut parts);
            assert_eq!(parts, Lanes { squares: [0.0; LANES], ..expected });
            let mut parts = Lanes::default();
            (kernels.squares)(&x, &mut parts);
            let Lanes { squares, count, peak, .. } = expected;
            assert_eq!(parts, Lanes { squares, count, peak, ..Lanes::default() });
        });
    }
}
