//! Judged by the definition, in float64.

use crate::reference::kept;
use crate::rng::Key;
use crate::simd::testing::levels_and_lengths;
use crate::simd::{Kernels, Level, Scaling, available_levels};

fn encode(kernels: &Kernels, values: &[f32], factor: f32, key: Key, first: u32) -> Vec<u8> {
    let mut codes = vec![0xAA; values.len()];
    let factors = vec![factor; values.len()];
    kernels.exponent_encode(values, &factors, key, first, &mut codes);
    let (mut left, mut again) = (values.to_vec(), vec![0xAA; values.len()]);
    let scaling = Scaling { to: [&factors; 2], back: &vec![0.5; values.len()] };
    kernels.exponent_left(&mut left, scaling, key, first, &mut again);
    assert_eq!(again, codes);
    let sent = decode(kernels, &codes, 0.5);
    for ((left, value), sent) in left.iter().zip(values).zip(sent) {
        assert_eq!(left.to_bits(), kept(value - sent).to_bits());
    }
    codes
}

fn decode(kernels: &Kernels, codes: &[u8], scale: f32) -> Vec<f32> {
    let mut values = vec![f32::NAN; codes.len()];
    kernels.exponent_decode(codes, &vec![scale; codes.len()], &mut values);
    values
}

fn every_level() -> impl Iterator<Item = &'static Kernels> {
    available_levels().into_iter().map(|level| Kernels::of(level).expect("available"))
}

#[test]
fn every_code_has_its_value_and_comes_back_by_any_draw() {
    let codes: Vec<u8> = (0..=u8::MAX).collect();
    for kernels in every_level() {
        for scale in [1.0, 2.0_f32.powi(127), 2.0_f32.powi(60)] {
            let values = decode(kernels, &codes, scale);
            for (&code, &value) in codes.iter().zip(&values) {
                let power = 2.0_f64.powi(i32::from(code & 0x7F) - 127) * f64::from(scale);
                let magnitude = if matches!(code, 0 | 0x80) { 0.0 } else { power };
                assert_eq!(f64::from(value.abs()), magnitude, "{code:#04x}");
                assert_eq!(value.is_sign_negative(), code & 0x80 != 0);
            }
            for seed in 0..20 {
                let key = Key::new(seed, 0, 0, 0);
                assert_eq!(encode(kernels, &values, 1.0 / scale, key, 0), codes);
            }
        }
    }
}

/// The draw has the whole range: a mantissa of all ones but the last stays below one draw in 2^23,
/// and no power of two ever goes up.
#[test]
#[cfg_attr(miri, ignore = "it takes too many draws")]
fn the_draw_has_its_full_range() {
    let key = Key::from_bits(0);
    let draws = |at: u32| key.bits(at) >> 9;
    // The first positions whose draws are at both ends.
    let least = (0..=u32::MAX).find(|&at| draws(at) == 0).unwrap();
    let most = (0..=u32::MAX).find(|&at| draws(at) == (1 << 23) - 1).unwrap();
    let nearly_one = 1.0_f32.next_down();
    for kernels in every_level() {
        let one = |value: f32, at| encode(kernels, &[value], 1.0, key, at)[0];
        assert_eq!(one(nearly_one, least), 126);
        assert_eq!(one(nearly_one, least + 1), 127);
        assert_eq!(one(0.5, most), 126);
        assert_eq!(one(0.5_f32.next_up(), most), 127);
        assert_eq!(one(0.5_f32.next_up(), least), 126);
        assert_eq!((one(0.0, most), one(-0.0, most)), (0, 0x80));
        assert_eq!(one(f32::from_bits(1), most), 1);
        assert_eq!(one(f32::from_bits(1), least), 0);
    }
}

#[test]
fn chance_decides_alike_on_every_level_and_wherever_a_block_begins() {
    let scalar = Kernels::of(Level::Scalar).unwrap();
    let key = Key::new(5, 6, 7, 8);
    levels_and_lengths(|kernels, x| {
        for factor in [1.0, 1e-30, 2.0_f32.powi(126)] {
            let codes = encode(kernels, &x, factor, key, 1000);
            assert_eq!(codes, encode(scalar, &x, factor, key, 1000));
            let middle = x.len() / 3;
            let tail = encode(kernels, &x[middle..], factor, key, 1000 + middle as u32);
            assert_eq!(codes[middle..], tail);
            assert_eq!(decode(kernels, &codes, 2.0), decode(scalar, &codes, 2.0));
        }
    });
}
