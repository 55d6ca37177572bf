//! Stochastic rounding of values to levels of a uniform grid, and back; signs back to values.
//!
//! A code is one byte: the level in its lower bits, and above them a one for values below zero. The
//! random number of entry `i` depends only on the key and on `first + i`. The entry is rounded up with
//! exactly the right probability, however small. Factors and scales are given for each entry, so that
//! blocks of any size run through the same loop.

use super::stamp::stamp;
use super::{Pair, Scaling, normal_or_zero};
use crate::rng::Key;

/// A uniform grid from zero to one, which factors and scales stretch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// The highest level, at most 127.
    levels: f32,
    /// The bit that holds the sign.
    sign: u32,
}

impl Grid {
    /// The grid of codes of so many bits, 2 to 8.
    pub fn new(bits: u8) -> Self {
        let sign = u32::from(bits.clamp(2, 8)) - 1;
        Self { levels: ((1_u32 << sign) - 1) as f32, sign }
    }

    /// What magnitudes are multiplied by to become levels of the grid up to a scale that is not
    /// negative: first by the second, a power of two that keeps the first a normal number. Under a
    /// scale of zero all are zeros.
    #[inline]
    pub fn factors(self, scale: f32) -> [f32; 2] {
        const FAR: f32 = 18_446_744_073_709_551_616.0; // 2^64
        let shift = match scale {
            0.0 => return [0.0, 1.0],
            ..1e-18 => FAR,
            1e18.. => 1.0 / FAR,
            _ => 1.0,
        };
        let factor = if scale > 0.0 { self.levels / (scale * shift) } else { 0.0 };
        [factor, shift]
    }

    /// The level below a magnitude, and how far it is from there to the next.
    #[inline(always)]
    fn below(self, x: f32, [factor, shift]: [f32; 2]) -> (u32, f32) {
        let share = (x * shift * factor).abs();
        // The smaller of a number and NaN is the number, so that this is in 0..=levels.
        let exact = share.min(self.levels);
        // SAFETY: from 0 to 127, whatever value and factors were.
        let whole: i32 = unsafe { exact.to_int_unchecked() };
        (whole as u32, exact - whole as f32)
    }

    #[inline(always)]
    fn code(self, x: f32, whole: u32, up: bool) -> u8 {
        let level = whole + u32::from(up);
        let negative = u32::from(x < 0.0) & u32::from(level != 0);
        (level | negative << self.sign) as u8
    }

    /// `scale * (level * r)`, `r` the float32 nearest to one over the highest level.
    #[inline(always)]
    fn value(self, code: u8, scale: f32) -> f32 {
        let (code, step) = (u32::from(code), 1.0 / self.levels);
        let magnitude = scale * ((code & ((1_u32 << self.sign) - 1)) as f32 * step);
        f32::from_bits(magnitude.to_bits() | (code >> self.sign) << 31)
    }
}

#[inline(always)]
fn round(
    x: &[f32],
    grid: Grid,
    [factors, shifts]: Pair<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    let mut open = 0;
    let entries = codes.iter_mut().zip(x).zip(factors.iter().zip(shifts));
    for (i, ((code, &x), (&factor, &shift))) in entries.enumerate() {
        let (whole, part) = grid.below(x, [factor, shift]);
        let unit = key.unit(first.wrapping_add(i as u32));
        open |= u32::from(Key::is_open(unit, part));
        *code = grid.code(x, whole, unit < part);
    }
    if open != 0 {
        settle(x, grid, [factors, shifts], key, first, codes);
    }
}

/// Rounds a block in which a draw has left open what to do: one in thousands.
#[cold]
#[inline(never)]
fn settle(
    x: &[f32],
    grid: Grid,
    [factors, shifts]: Pair<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    let entries = codes.iter_mut().zip(x).zip(factors.iter().zip(shifts));
    for (i, ((code, &x), (&factor, &shift))) in entries.enumerate() {
        let (whole, part) = grid.below(x, [factor, shift]);
        *code = grid.code(x, whole, key.chance(first.wrapping_add(i as u32), part));
    }
}

#[inline(always)]
fn leave(x: &mut [f32], grid: Grid, scaling: Scaling<'_>, key: Key, first: u32, codes: &mut [u8]) {
    round(x, grid, scaling.to, key, first, codes);
    // A loop of its own: what a draw leaves open is settled from the values.
    for ((x, &code), &scale) in x.iter_mut().zip(&*codes).zip(scaling.back) {
        *x = normal_or_zero(*x - grid.value(code, scale));
    }
}

#[inline(always)]
fn restore(codes: &[u8], grid: Grid, scales: &[f32], out: &mut [f32]) {
    for ((out, &code), &scale) in out.iter_mut().zip(codes).zip(scales) {
        *out = grid.value(code, scale);
    }
}

#[inline(always)]
fn choose(codes: &[u8], [zeros, ones]: Pair<'_>, out: &mut [f32]) {
    for ((out, &code), (zero, one)) in out.iter_mut().zip(codes).zip(zeros.iter().zip(ones)) {
        // By a mask: of a choice between two loads the compiler makes one load from either place,
        // entry by entry.
        let (zero, one, mask) =
            (zero.to_bits(), one.to_bits(), u32::from(code != 0).wrapping_neg());
        *out = f32::from_bits(zero ^ ((zero ^ one) & mask));
    }
}

#[inline(always)]
fn less(x: &mut [f32], sent: &[f32]) {
    for (x, &sent) in x.iter_mut().zip(sent) {
        *x = normal_or_zero(*x - sent);
    }
}

/// Values to randomly rounded levels, with signs.
pub(in crate::simd) mod to_levels {
    use super::{Grid, Key, Pair, round, stamp};
    stamp!(
        fn(x: &[f32], grid: Grid, factors: Pair<'_>, key: Key, first: u32, codes: &mut [u8]) => round
    );
}

/// The same, and what is left of each value.
pub(in crate::simd) mod to_levels_left {
    use super::{Grid, Key, Scaling, leave, stamp};
    stamp!(
        fn(
            x: &mut [f32],
            grid: Grid,
            scaling: Scaling<'_>,
            key: Key,
            first: u32,
            codes: &mut [u8],
        ) => leave
    );
}

/// Levels and signs to values.
pub(in crate::simd) mod from_levels {
    use super::{Grid, restore, stamp};
    stamp!(fn(codes: &[u8], grid: Grid, scales: &[f32], out: &mut [f32]) => restore);
}

/// The first of an entry's pair for a code of zero, the second for one.
pub(in crate::simd) mod one_of_two {
    use super::{Pair, choose, stamp};
    stamp!(fn(codes: &[u8], pairs: Pair<'_>, out: &mut [f32]) => choose);
}

/// What is left when this much was sent.
pub(in crate::simd) mod subtract {
    use super::{less, stamp};
    stamp!(fn(x: &mut [f32], sent: &[f32]) => less);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::kept;
    use crate::rng::testing::position_of;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn codes_are_those_of_the_definition_on_every_level() {
        let key = Key::new(3, 1, 4, 1);
        levels_and_lengths(|kernels, x| {
            let peak = x.iter().fold(0.0_f32, |peak, v| peak.max(v.abs()));
            for (bits, scale) in (2..=8).flat_map(|bits| [(bits, peak), (bits, 0.3), (bits, 0.0)]) {
                let levels = f64::from((1_u32 << (bits - 1)) - 1);
                let mut codes = vec![0xFF; x.len()];
                let grid = Grid::new(bits);
                let to = grid.factors(scale).map(|factor| vec![factor; x.len()]);
                let (to, back) = ([&to[0][..], &to[1][..]], vec![scale; x.len()]);
                kernels.to_levels(&x, grid, to, key, 7, &mut codes);
                let mut expected = vec![0; x.len()];
                round(&x, grid, to, key, 7, &mut expected);
                assert_eq!(codes, expected, "{:?} {bits} {scale}", kernels.level());
                let mut values = vec![f32::NAN; x.len()];
                kernels.from_levels(&codes, grid, &back, &mut values);
                let (mut left, mut again) = (x.clone(), vec![0xFF; x.len()]);
                let scaling = Scaling { to, back: &back };
                kernels.to_levels_left(&mut left, grid, scaling, key, 7, &mut again);
                assert_eq!(again, codes);
                for ((left, x), value) in left.iter().zip(&x).zip(&values) {
                    assert_eq!(left.to_bits(), kept(x - value).to_bits());
                }
                for ((&x, &code), value) in x.iter().zip(&codes).zip(values) {
                    let (level, negative) = (code & !(1 << (bits - 1)), code >> (bits - 1) == 1);
                    assert_eq!(negative, x < 0.0 && level > 0);
                    let exact = f64::from(scale) * f64::from(level) / levels;
                    let signed = if negative { -exact } else { exact };
                    assert!((f64::from(value) - signed).abs() <= exact * 2e-7 + 1e-45);
                    // Never further than one level away, but for what is beyond the scale.
                    let clipped = f64::from(x.abs().min(scale));
                    assert!((exact - clipped).abs() <= f64::from(scale) / levels * 1.000_001);
                }
            }
        });
    }

    /// 1e-12 of the scale used to go up once in 2^24 draws, sixteen thousand times too often.
    #[test]
    fn what_is_nearly_nothing_goes_up_as_seldom_as_it_should_on_every_level() {
        for (share, least, most) in [(1e-12_f32, 0, 3), (1e-8, 3800, 4800)] {
            let mut counts = Vec::new();
            for level in crate::simd::available_levels() {
                let kernels = crate::simd::Kernels::of(level).unwrap();
                let (grid, mut ups) = (Grid::new(2), 0);
                for seed in 0..100 {
                    let key = Key::new(seed, 7, 7, 7);
                    for low in 0..256 {
                        // In the middle of a block; the lowest of all draws.
                        let first = position_of(key, low).wrapping_sub(20);
                        let mut codes = [0xFF; 37];
                        let to = [&[1.0; 37][..]; 2];
                        kernels.to_levels(&[-share; 37], grid, to, key, first, &mut codes);
                        assert!(codes[20] == 0 || codes[20] == 3);
                        ups += u32::from(codes[20] == 3);
                    }
                }
                // 25 600 draws that are all below 2^-24.
                assert!((least..=most).contains(&ups), "{ups} of {share}");
                counts.push(ups);
            }
            counts.dedup();
            assert_eq!(counts.len(), 1);
        }
    }

    #[test]
    fn signs_come_back_as_one_of_two() {
        levels_and_lengths(|kernels, mut x| {
            let codes: Vec<u8> = x.iter().map(|&x| u8::from(x >= 0.0)).collect();
            let mut values = vec![f32::NAN; x.len()];
            let pairs = [-2.0, 3.0].map(|v| (0..x.len()).map(|i| v * i as f32).collect::<Vec<_>>());
            kernels.one_of_two(&codes, [&pairs[0], &pairs[1]], &mut values);
            for (i, (&v, &x)) in values.iter().zip(&x).enumerate() {
                assert_eq!(v, i as f32 * if x < 0.0 { -2.0 } else { 3.0 });
            }
            let left: Vec<f32> = x.iter().zip(&values).map(|(x, v)| kept(x - v)).collect();
            kernels.subtract(&mut x, &values);
            assert_eq!(x, left);
        });
    }

    #[test]
    fn what_is_not_finite_gives_some_code() {
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
        for scale in [0.0, 1.0, f32::MAX, f32::INFINITY, f32::NAN] {
            let (mut codes, grid) = ([0xFF; 4], Grid::new(4));
            let [factors, shifts] = grid.factors(scale).map(|factor| [factor; 4]);
            round(&x, grid, [&factors, &shifts], Key::from_bits(1), 0, &mut codes);
            assert!(codes.iter().all(|&code| code < 16));
        }
    }
}
