//! Sums over values and their squares, those below zero apart, and the largest magnitude: what the
//! scales of quantizers follow from.
//!
//! Sums are float64 over sixteen lanes; element `i` of a block goes to lane `i % 16`. A square of a
//! float32 is exact in float64, and cannot overflow it. Where a value is not finite, the peak shows
//! it and the sums mean nothing.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::stamp::stamp;
use super::{LANES, padded, reduce};

/// What is known of the values of a group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Values.
    pub count: u64,
    /// Values below zero.
    pub negatives: u64,
    /// The sum of the values that are not below zero.
    pub above: f64,
    /// The sum of the values below zero.
    pub below: f64,
    /// The sum of squares.
    pub squares: f64,
    /// Bits of the largest magnitude.
    pub peak: u32,
}

impl From<Lanes> for Summary {
    #[inline(always)]
    fn from(lanes: Lanes) -> Self {
        Self {
            count: lanes.count,
            negatives: lanes.negatives,
            above: reduce(&lanes.above),
            below: reduce(&lanes.below),
            squares: reduce(&lanes.squares),
            peak: lanes.peak,
        }
    }
}

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

/// Sixteen lanes of each sum, apart from [`Lanes`] so that they stay in registers.
struct Sums {
    above: [f64; LANES],
    below: [f64; LANES],
    squares: [f64; LANES],
    negatives: [u32; LANES],
    peaks: [u32; LANES],
}

impl Sums {
    #[inline(always)]
    fn add<const SIDES: bool, const SQUARES: bool>(&mut self, x: &[f32; LANES]) {
        for (i, &x) in x.iter().enumerate() {
            let wide = f64::from(x);
            let is_below = x < 0.0;
            if SIDES {
                self.above[i] += if is_below { 0.0 } else { wide };
                self.below[i] += if is_below { wide } else { 0.0 };
                self.negatives[i] += u32::from(is_below);
            }
            if SQUARES {
                self.squares[i] += wide * wide;
            }
            self.peaks[i] = self.peaks[i].max(x.to_bits() & 0x7FFF_FFFF);
        }
    }

    #[inline(always)]
    fn add_all<const SIDES: bool, const SQUARES: bool>(&mut self, x: &[f32]) {
        let (whole, rest) = x.as_chunks::<LANES>();
        for x in whole {
            self.add::<SIDES, SQUARES>(x);
        }
        if !rest.is_empty() {
            // Zeros change no sum.
            self.add::<SIDES, SQUARES>(&padded(rest));
        }
    }

    #[inline(always)]
    fn negatives(&self) -> u64 {
        self.negatives.iter().map(|&n| u64::from(n)).sum()
    }

    #[inline(always)]
    fn peak(&self) -> u32 {
        self.peaks.iter().fold(0, |peak, &p| peak.max(p))
    }
}

/// Of all that there is to know, or of values by their sides alone, or of squares alone: float64 is
/// what a summary spends its time on.
#[inline(always)]
fn body<const SIDES: bool, const SQUARES: bool>(x: &[f32], lanes: &mut Lanes) {
    let Lanes { above, below, squares, .. } = *lanes;
    let (negatives, peaks) = ([0; LANES], [0; LANES]);
    let mut sums = Sums { above, below, squares, negatives, peaks };
    sums.add_all::<SIDES, SQUARES>(x);
    *lanes = Lanes {
        above: sums.above,
        below: sums.below,
        squares: sums.squares,
        count: lanes.count + x.len() as u64,
        negatives: lanes.negatives + sums.negatives(),
        peak: lanes.peak.max(sums.peak()),
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

/// Of each group of `len` values in a row, the last of which may be shorter.
#[inline(always)]
fn each<const SIDES: bool, const SQUARES: bool>(x: &[f32], len: usize, out: &mut [Summary]) {
    for (out, group) in out.iter_mut().zip(x.chunks(len)) {
        let (zeros, none) = ([0.0; LANES], [0; LANES]);
        let mut sums =
            Sums { above: zeros, below: zeros, squares: zeros, negatives: none, peaks: none };
        sums.add_all::<SIDES, SQUARES>(group);
        *out = Summary {
            count: group.len() as u64,
            negatives: if SIDES { sums.negatives() } else { 0 },
            above: if SIDES { reduce(&sums.above) } else { 0.0 },
            below: if SIDES { reduce(&sums.below) } else { 0.0 },
            squares: if SQUARES { reduce(&sums.squares) } else { 0.0 },
            peak: sums.peak(),
        };
    }
}

stamp!(fn(x: &[f32], lanes: &mut Lanes) => both);

/// Makes a module with the summaries of each group of `len` values in a row: with the sums over
/// sides or without them, and with squares or without.
macro_rules! of_groups {
    ($(#[$doc:meta])* $name:ident, $sides:literal, $squares:literal) => {
        $(#[$doc])*
        pub(in crate::simd) mod $name {
            #[cfg(target_arch = "x86_64")]
            use crate::simd::summary::x86;
            use crate::simd::summary::{Summary, each};

            pub(in crate::simd) fn scalar(x: &[f32], len: usize, out: &mut [Summary]) {
                each::<$sides, $squares>(x, len, out);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            pub(in crate::simd) fn avx2(x: &[f32], len: usize, out: &mut [Summary]) {
                x86::of_groups::<$sides, $squares>(x, len, out);
            }

            #[cfg(target_arch = "x86_64")]
            pub(in crate::simd) use avx2 as avx512;
            #[cfg(target_arch = "aarch64")]
            pub(in crate::simd) use scalar as neon;
        }
    };
}

of_groups!(
    /// The summary of each group.
    groups, true, true
);
of_groups!(
    /// The same without squares.
    group_sides, true, false
);
of_groups!(
    /// The same of squares, count and peak alone.
    group_squares, false, true
);

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
    use super::{LANES, Lanes, Summary};
    use crate::simd::Kernels;
    use crate::simd::testing::levels_and_lengths;

    type Each = fn(&Kernels, &[f32], usize, &mut [Summary]);

    #[test]
    fn each_group_has_the_sums_of_its_own() {
        levels_and_lengths(|kernels, x| {
            for len in (1..=70).chain([300]) {
                let summaries = |kernel: fn(&Kernels, &[f32], &mut Lanes)| {
                    let each = x.chunks(len).map(|group| {
                        let mut lanes = Lanes::default();
                        kernel(kernels, group, &mut lanes);
                        Summary::from(lanes)
                    });
                    each.collect::<Vec<_>>()
                };
                for (kernel, expected) in [
                    (Kernels::group_summaries as Each, summaries(Kernels::summary)),
                    (Kernels::group_sides, summaries(Kernels::sides)),
                    (Kernels::group_squares, summaries(Kernels::squares)),
                ] {
                    let mut found = vec![Summary::default(); expected.len()];
                    kernel(kernels, &x, len, &mut found);
                    assert_eq!(found, expected, "{:?} {len}", kernels.level());
                }
            }
        });
    }

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
            kernels.summary(&x, &mut lanes);
            assert_eq!(lanes, expected, "{:?} {}", kernels.level(), x.len());
            let mut parts = Lanes::default();
            kernels.sides(&x, &mut parts);
            assert_eq!(parts, Lanes { squares: [0.0; LANES], ..expected });
            let mut parts = Lanes::default();
            kernels.squares(&x, &mut parts);
            let Lanes { squares, count, peak, .. } = expected;
            assert_eq!(parts, Lanes { squares, count, peak, ..Lanes::default() });
        });
    }
}
