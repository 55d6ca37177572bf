//! float32 to bfloat16, up or down by chance.
//!
//! `dither(values, key, first, out)` writes one of the two bfloat16 that a value lies between, each with
//! a probability that falls with the distance from it, so that the expected result is the value
//! itself. A value that is a bfloat16 stays as it is. No magnitude is above the largest bfloat16:
//! [`tame`] sees to that.
//!
//! Four entries share the 32 bits of a random number: the entry at position `i` that at `16 * (i / 64) +
//! i % 16`. With `q = i / 16 % 4`, it takes the 16 bits from bit `8 * q` on, around the end. They are
//! added to the bits of the value, and the upper half of the sum is the result. As many of
//! the 65536 draws carry into that as the lower half says: the chance is exact. Which way entries go
//! depends on the upper eight of their bits nearly always, and those are no other entry's.

use half::bf16;

use super::LANES;
use super::stamp::stamp;
use crate::rng::Key;

/// Entries that share draws.
pub(in crate::simd) const GROUP: usize = 4 * LANES;

/// Bits of the largest magnitude that may be.
pub(crate) const LARGEST: u32 = 0x7F7F_0000;

/// Rounds by 16 random bits.
#[inline(always)]
fn round(value: f32, draw: u32) -> bf16 {
    bf16::from_bits((value.to_bits().wrapping_add(draw) >> 16) as u16)
}

/// The entry's part of a draw.
#[inline(always)]
fn part(draw: u32, quarter: u32) -> u32 {
    draw.rotate_right(8 * quarter) & 0xFFFF
}

/// Rounds the entry at a position.
#[inline(always)]
fn one(value: f32, key: Key, position: u32) -> bf16 {
    let draw = key.bits(position / 64 * 16 + position % 16);
    round(value, part(draw, position / 16 % 4))
}

/// Rounds the entry at a position, whatever it is: as [`tame`] would have it.
pub(crate) fn at(value: f32, key: Key, position: u32) -> bf16 {
    one(tamed(value), key, position)
}

/// Makes what is beyond the largest bfloat16 that, and zero of what is not finite.
pub(crate) fn tame(values: &mut [f32]) {
    for value in values {
        *value = tamed(*value);
    }
}

fn tamed(value: f32) -> f32 {
    let most = f32::from_bits(LARGEST);
    if value.is_finite() { value.clamp(-most, most) } else { 0.0 }
}

#[inline(always)]
fn each(values: &[f32], key: Key, first: u32, out: &mut [bf16]) {
    for (i, (out, &value)) in out.iter_mut().zip(values).enumerate() {
        *out = one(value, key, first.wrapping_add(i as u32));
    }
}

/// The draws that a group shares which begins at a position.
#[inline(always)]
pub(in crate::simd) fn draws(key: Key, first: u32) -> [u32; LANES] {
    let mut draws = [0; LANES];
    for (lane, draw) in draws.iter_mut().enumerate() {
        *draw = key.bits(first / 4 + lane as u32);
    }
    draws
}

/// Their parts for a quarter of the group.
#[inline(always)]
pub(in crate::simd) fn parts(draws: &[u32; LANES], quarter: usize) -> [u32; LANES] {
    let mut parts = *draws;
    for draw in &mut parts {
        *draw = part(*draw, quarter as u32);
    }
    parts
}

/// Rounds a quarter of a group, at a rotation that is known to the compiler.
#[inline(always)]
fn quarter<const Q: usize>(group: &[f32; GROUP], draws: &[u32; LANES], target: &mut [bf16; GROUP]) {
    for (lane, &draw) in parts(draws, Q).iter().enumerate() {
        let at = LANES * Q + lane;
        target[at] = round(group[at], draw);
    }
}

#[inline(always)]
fn body(values: &[f32], key: Key, first: u32, out: &mut [bf16]) {
    let before = (first.wrapping_neg() as usize % GROUP).min(values.len());
    let (front, values) = values.split_at(before);
    let (out_front, out) = out.split_at_mut(before);
    each(front, key, first, out_front);
    let mut first = first.wrapping_add(before as u32);
    let (groups, rest) = values.as_chunks::<GROUP>();
    let (targets, end) = out.as_chunks_mut::<GROUP>();
    for (group, target) in groups.iter().zip(targets) {
        let draws = draws(key, first);
        quarter::<0>(group, &draws, target);
        quarter::<1>(group, &draws, target);
        quarter::<2>(group, &draws, target);
        quarter::<3>(group, &draws, target);
        first = first.wrapping_add(GROUP as u32);
    }
    each(rest, key, first, end);
}

stamp!(fn(values: &[f32], key: Key, first: u32, out: &mut [bf16]) => body);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::testing::levels_and_lengths;

    /// The bfloat16 nearer to zero and farther from it, and the chance of the latter times 2^16.
    fn neighbours(value: f32) -> (f32, f32, u32) {
        let bits = value.to_bits();
        let (near, far) = (bits & 0xFFFF_0000, (bits & 0xFFFF_0000).wrapping_add(0x1_0000));
        (f32::from_bits(near), f32::from_bits(far), bits & 0xFFFF)
    }

    #[test]
    fn equals_one_value_at_a_time_on_every_level_from_any_position() {
        levels_and_lengths(|kernels, x| {
            for first in [0, 1, 15, 16, 47, 63, 64, 1000, 2048, u32::MAX - 40] {
                let key = Key::new(1, 2, 3, first.into());
                let mut out = vec![bf16::NAN; x.len()];
                kernels.dither(&x, key, first, &mut out);
                for (i, (&value, out)) in x.iter().zip(&out).enumerate() {
                    let position = first.wrapping_add(i as u32);
                    let draw = u64::from(key.bits(position / 64 * 16 + position % 16));
                    // Twice, so that it goes on around the end.
                    let draw = (draw << 32 | draw) >> (8 * (position % 64 / 16)) & 0xFFFF;
                    let (near, far, chance) = neighbours(value);
                    let expected = if draw as u32 + chance >= 0x1_0000 { far } else { near };
                    assert_eq!(out.to_f32().to_bits(), expected.to_bits(), "{value} {position}");
                    assert_eq!(at(value, key, position), *out);
                }
            }
        });
    }

    #[test]
    fn every_draw_is_as_likely_so_that_the_mean_is_the_value() {
        for value in [1.0 + 1e-3, -2.718_1, 1e-40, 0.999, 6.5e30, 3.389e38] {
            let (near, far, chance) = neighbours(value);
            let away = (0..0x1_0000).filter(|&draw| round(value, draw).to_f32() == far).count();
            assert_eq!(away as u32, chance);
            let (near, far, value) = (f64::from(near), f64::from(far), f64::from(value));
            let mean = near + (far - near) * away as f64 / 65536.0;
            assert!((mean - value).abs() <= 1e-12 * value.abs(), "{value}: {mean}");
        }
    }

    #[test]
    fn a_bfloat16_stays_as_it_is() {
        for value in [0.0, -0.0, 1.0, -2.5, f32::from_bits(0x0001_0000), f32::from_bits(LARGEST)] {
            for draw in [0, 1, 0xFFFF] {
                assert_eq!(round(value, draw).to_f32().to_bits(), value.to_bits());
            }
        }
    }

    #[test]
    fn what_was_tamed_is_never_infinite() {
        let most = bf16::MAX.to_f32();
        let mut values =
            [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, -most];
        let ones = f32::from_bits(u32::MAX);
        assert_eq!(at(ones, Key::from_bits(3), 9), bf16::ZERO);
        tame(&mut values);
        assert_eq!(values, [most, -most, 0.0, 0.0, 0.0, 1.0, -most]);
        assert!(values.iter().all(|&value| round(value, 0xFFFF).is_finite()));
    }
}
