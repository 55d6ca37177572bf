//! Values to levels of a uniform grid by chance and back, and to signs and back.
//!
//! A code is one byte: the level in its lower bits, and above them a one for values below zero. The
//! number that entry `i` is rounded by depends on the key and on `first + i` alone. It goes up with
//! exactly the probability that it should, however small that is.

use super::stamp::stamp;
use crate::rng::Key;

/// A uniform grid from zero to a scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// A power of two that keeps `factor` a normal number.
    shift: f32,
    /// Levels for each unit of `magnitude * shift`.
    factor: f32,
    /// The highest level, at most 127.
    levels: f32,
    /// The bit that holds the sign.
    sign: u32,
    scale: f32,
}

impl Grid {
    /// The grid of codes of so many bits, 2 to 8, up to a scale that is not negative. That of a
    /// scale of zero has the level zero only.
    pub fn new(bits: u8, scale: f32) -> Self {
        const FAR: f32 = 18_446_744_073_709_551_616.0; // 2^64
        let sign = u32::from(bits.clamp(2, 8)) - 1;
        let levels = ((1_u32 << sign) - 1) as f32;
        let shift = match scale {
            ..1e-18 => FAR,
            1e18.. => 1.0 / FAR,
            _ => 1.0,
        };
        let factor = if scale > 0.0 { levels / (scale * shift) } else { 0.0 };
        Self { shift, factor, levels, sign, scale }
    }
}

impl Grid {
    /// The level below a magnitude, and how far it is from there to the next.
    #[inline(always)]
    fn below(self, x: f32) -> (u32, f32) {
        let share = (x.abs() * self.shift) * self.factor;
        // The smaller of a number and NaN is the number, so that this is in 0..=levels.
        let exact = share.min(self.levels);
        // SAFETY: finite and at most 127, whatever the value was.
        let whole: i32 = unsafe { exact.to_int_unchecked() };
        (whole as u32, exact - whole as f32)
    }

    #[inline(always)]
    fn code(self, x: f32, whole: u32, up: bool) -> u8 {
        let level = whole + u32::from(up);
        let negative = u32::from(x < 0.0) & u32::from(level != 0);
        (level | negative << self.sign) as u8
    }
}

#[inline(always)]
fn round(x: &[f32], grid: Grid, key: Key, first: u32, codes: &mut [u8]) {
    let mut open = 0;
    for ((i, code), &x) in codes.iter_mut().enumerate().zip(x) {
        let (whole, part) = grid.below(x);
        let unit = key.unit(first.wrapping_add(i as u32));
        open |= u32::from(Key::is_open(unit, part));
        *code = grid.code(x, whole, unit < part);
    }
    if open != 0 {
        settle(x, grid, key, first, codes);
    }
}

/// Rounds a block in which a draw has left open what to do: one in thousands.
#[cold]
#[inline(never)]
fn settle(x: &[f32], grid: Grid, key: Key, first: u32, codes: &mut [u8]) {
    for ((i, code), &x) in codes.iter_mut().enumerate().zip(x) {
        let (whole, part) = grid.below(x);
        *code = grid.code(x, whole, key.chance(first.wrapping_add(i as u32), part));
    }
}

/// `scale * (level * r)`, `r` the float32 nearest to one over the highest level.
#[inline(always)]
fn restore(codes: &[u8], grid: Grid, out: &mut [f32]) {
    let (step, mask) = (1.0 / grid.levels, (1_u32 << grid.sign) - 1);
    for (out, &code) in out.iter_mut().zip(codes) {
        let code = u32::from(code);
        let magnitude = grid.scale * ((code & mask) as f32 * step);
        *out = f32::from_bits(magnitude.to_bits() | (code >> grid.sign) << 31);
    }
}

#[inline(always)]
fn sign(x: &[f32], codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = u8::from(x >= 0.0);
    }
}

#[inline(always)]
fn choose(codes: &[u8], pair: [f32; 2], out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = if code == 0 { pair[0] } else { pair[1] };
    }
}

#[inline(always)]
fn less(x: &mut [f32], sent: &[f32]) {
    for (x, &sent) in x.iter_mut().zip(sent) {
        *x -= sent;
    }
}

/// Values to levels and signs, by chance.
pub(in crate::simd) mod to_levels {
    use super::{Grid, Key, round, stamp};
    stamp!(fn(x: &[f32], grid: Grid, key: Key, first: u32, codes: &mut [u8]) => round);
}

/// Levels and signs to values.
pub(in crate::simd) mod from_levels {
    use super::{Grid, restore, stamp};
    stamp!(fn(codes: &[u8], grid: Grid, out: &mut [f32]) => restore);
}

/// One for values that are not below zero.
pub(in crate::simd) mod signs {
    use super::{sign, stamp};
    stamp!(fn(x: &[f32], codes: &mut [u8]) => sign);
}

/// The first of a pair for a code of zero, the second for one.
pub(in crate::simd) mod one_of_two {
    use super::{choose, stamp};
    stamp!(fn(codes: &[u8], pair: [f32; 2], out: &mut [f32]) => choose);
}

/// What is left when this much was sent.
pub(in crate::simd) mod subtract {
    use super::{less, stamp};
    stamp!(fn(x: &mut [f32], sent: &[f32]) => less);
}

#[cfg(test)]
mod tests {
    use super::*;
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
                let grid = Grid::new(bits, scale);
                (kernels.to_levels)(&x, grid, key, 7, &mut codes);
                let mut expected = vec![0; x.len()];
                round(&x, grid, key, 7, &mut expected);
                assert_eq!(codes, expected, "{:?} {bits} {scale}", kernels.level);
                let mut values = vec![f32::NAN; x.len()];
                (kernels.from_levels)(&codes, grid, &mut values);
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
                let (grid, mut ups) = (Grid::new(2, 1.0), 0);
                for seed in 0..100 {
                    let key = Key::new(seed, 7, 7, 7);
                    for low in 0..256 {
                        // In the middle of a block; the lowest of all draws.
                        let first = position_of(key, low).wrapping_sub(20);
                        let mut codes = [0xFF; 37];
                        (kernels.to_levels)(&[-share; 37], grid, key, first, &mut codes);
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
    fn signs_count_zeros_as_positive_and_come_back_as_one_of_two() {
        levels_and_lengths(|kernels, mut x| {
            let mut codes = vec![0xFF; x.len()];
            (kernels.signs)(&x, &mut codes);
            assert!(codes.iter().zip(&x).all(|(&code, &x)| code == u8::from(x >= 0.0)));
            let mut values = vec![f32::NAN; x.len()];
            (kernels.one_of_two)(&codes, [-2.0, 3.0], &mut values);
            assert!(values.iter().zip(&x).all(|(&v, &x)| v == if x < 0.0 { -2.0 } else { 3.0 }));
            let left: Vec<f32> = x.iter().zip(&values).map(|(x, v)| x - v).collect();
            (kernels.subtract)(&mut x, &values);
            assert_eq!(x, left);
        });
    }

    #[test]
    fn what_is_not_finite_gives_some_code() {
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
        for scale in [0.0, 1.0, f32::MAX, f32::INFINITY, f32::NAN] {
            let mut codes = [0xFF; 4];
            round(&x, Grid::new(4, scale), Key::from_bits(1), 0, &mut codes);
            assert!(codes.iter().all(|&code| code < 16));
        }
    }
}
