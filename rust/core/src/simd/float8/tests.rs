//! Judged by the definition of the formats, in float64.

use super::Format::{self, E4M3, E5M2};
use crate::reference::kept;
use crate::rng::Key;
use crate::rng::testing::position_of;
use crate::simd::testing::levels_and_lengths;
use crate::simd::{Kernels, Scaling, available_levels};

const FORMATS: [Format; 2] = [E5M2, E4M3];

/// The value of a code by the definition: sign, exponent field, mantissa.
fn value_of(code: u8, format: Format) -> f64 {
    let (mantissa, bias) = (format.mantissa(), format.bias());
    let (field, fraction) = (u32::from(code & 0x7F) >> mantissa, u32::from(code) % (1 << mantissa));
    let fraction = f64::from(fraction) / f64::from(1_u32 << mantissa);
    let (exponent, significand) = match field {
        0 => (1 - bias as i32, fraction),
        _ => (field as i32 - bias as i32, 1.0 + fraction),
    };
    let magnitude = significand * 2.0_f64.powi(exponent);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

fn finite_codes(format: Format) -> impl Iterator<Item = u8> {
    (0..=u8::MAX).filter(move |code| code & 0x7F <= format.largest())
}

/// The nearest code by trying them all; of two at the same distance the even one.
fn nearest_of_all(value: f32, format: Format) -> u8 {
    // Beyond the largest code float64 could not tell distances apart.
    let magnitude = f64::from(value.abs()).min(value_of(format.largest(), format));
    let distance = |code: &u8| (value_of(*code, format) - magnitude).abs();
    let order = |a: &u8, b: &u8| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2)));
    let magnitude = (0..=format.largest()).min_by(order).unwrap();
    magnitude | if value.is_sign_negative() { 0x80 } else { 0 }
}

/// Both neighbours of every code boundary, and the boundary itself.
fn around_midpoints(format: Format) -> Vec<f32> {
    let mut values = vec![0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1e30, f32::MAX];
    for code in 0..format.largest() {
        let middle = f64::midpoint(value_of(code, format), value_of(code + 1, format)) as f32;
        let code = value_of(code, format) as f32;
        values.extend([middle.next_down(), middle, middle.next_up(), code, code.next_up()]);
    }
    values.iter().flat_map(|&v| [v, -v]).collect()
}

fn nearest(kernels: &Kernels, values: &[f32], format: Format, factors: [f32; 2]) -> Vec<u8> {
    let mut codes = vec![0xAA; values.len()];
    let factors = factors.map(|factor| vec![factor; values.len()]);
    let to = [&factors[0][..], &factors[1][..]];
    kernels.float8_nearest(values, format, to, &mut codes);
    let (mut left, mut again) = (values.to_vec(), vec![0xAA; values.len()]);
    let scaling = Scaling { to, back: &vec![0.25; values.len()] };
    kernels.float8_nearest_left(&mut left, format, scaling, &mut again);
    assert_eq!(again, codes);
    assert_left(kernels, &left, values, format, &codes);
    codes
}

/// What coding leaves is the value without a quarter of what its code stands for.
fn assert_left(kernels: &Kernels, left: &[f32], values: &[f32], format: Format, codes: &[u8]) {
    let sent = decode(kernels, codes, format, 0.25);
    for ((left, value), sent) in left.iter().zip(values).zip(sent) {
        assert_eq!(left.to_bits(), kept(value - sent).to_bits());
    }
}

fn by_chance(kernels: &Kernels, values: &[f32], format: Format, key: Key, first: u32) -> Vec<u8> {
    let mut codes = vec![0xAA; values.len()];
    let back = vec![0.25; values.len()];
    let ones = vec![1.0; values.len()];
    let to = [&ones[..]; 2];
    kernels.float8_stochastic(values, format, to, key, first, &mut codes);
    let (mut left, mut again) = (values.to_vec(), vec![0xAA; values.len()]);
    let scaling = Scaling { to, back: &back };
    kernels.float8_stochastic_left(&mut left, format, scaling, key, first, &mut again);
    assert_eq!(again, codes);
    assert_left(kernels, &left, values, format, &codes);
    codes
}

fn decode(kernels: &Kernels, codes: &[u8], format: Format, scale: f32) -> Vec<f32> {
    let mut values = vec![f32::NAN; codes.len()];
    kernels.float8_decode(codes, format, &vec![scale; codes.len()], &mut values);
    values
}

fn every_level() -> impl Iterator<Item = &'static Kernels> {
    available_levels().into_iter().map(|level| Kernels::of(level).expect("available"))
}

#[test]
fn the_formats_reach_as_far_as_their_standard_says() {
    for (format, largest, normal, smallest) in [(E5M2, 57344.0, -14, -16), (E4M3, 448.0, -6, -9)] {
        assert_eq!(value_of(format.largest(), format), largest);
        assert_eq!(value_of(1 << format.mantissa(), format), 2.0_f64.powi(normal));
        assert_eq!(value_of(1, format), 2.0_f64.powi(smallest));
    }
}

#[test]
fn every_code_has_its_value_and_comes_back() {
    for format in FORMATS {
        let codes: Vec<u8> = finite_codes(format).collect();
        for kernels in every_level() {
            let values = decode(kernels, &codes, format, 1.0);
            for (code, value) in codes.iter().zip(&values) {
                assert_eq!(f64::from(*value), value_of(*code, format), "{format:?} {code:#04x}");
                assert_eq!(value.is_sign_negative(), code & 0x80 != 0);
            }
            assert_eq!(nearest(kernels, &values, format, [1.0; 2]), codes);
            for seed in 0..20 {
                let key = Key::new(seed, 0, 0, 0);
                assert_eq!(by_chance(kernels, &values, format, key, 0), codes);
            }
            // A power of two moves the values, and its inverse moves them back.
            let scale = 2.0_f32.powi(-100);
            let scaled = decode(kernels, &codes, format, scale);
            let expected: Vec<f32> = values.iter().map(|v| v * scale).collect();
            assert_eq!(scaled, expected);
            assert_eq!(nearest(kernels, &scaled, format, [1.0 / scale, 1.0]), codes);
        }
    }
}

#[test]
fn rounds_to_the_nearest_of_all_codes_and_ties_to_even() {
    for format in FORMATS {
        let values = around_midpoints(format);
        let expected: Vec<u8> = values.iter().map(|&v| nearest_of_all(v, format)).collect();
        for kernels in every_level() {
            assert_eq!(nearest(kernels, &values, format, [1.0; 2]), expected, "{format:?}");
        }
    }
}

#[test]
fn every_length_on_every_level_is_the_nearest_too() {
    levels_and_lengths(|kernels, x| {
        for format in FORMATS {
            let factors = [256.0, 2.0];
            let codes = nearest(kernels, &x, format, factors);
            for (value, code) in x.iter().zip(&codes) {
                let expected = nearest_of_all(value * 512.0, format);
                assert_eq!(*code, expected, "{format:?} {value}");
            }
        }
    });
}

#[test]
fn what_is_too_large_saturates_and_no_code_is_ever_infinite_or_nan() {
    for format in FORMATS {
        let edge = value_of(format.largest(), format) as f32;
        let past = [edge, edge.next_up(), edge * 1.07, edge * 2.0, f32::MAX, f32::INFINITY];
        for kernels in every_level() {
            let largest = [format.largest(); 6];
            assert_eq!(nearest(kernels, &past, format, [1.0; 2]), largest);
            assert_eq!(by_chance(kernels, &past, format, Key::new(1, 2, 3, 4), 0), largest);
            let below = past.map(|v| -v);
            assert_eq!(nearest(kernels, &below, format, [1.0; 2]), largest.map(|c| c | 0x80));
        }
    }
}

#[test]
fn chance_decides_alike_on_every_level_and_wherever_a_block_begins() {
    let scalar = Kernels::of(crate::simd::Level::Scalar).unwrap();
    let key = Key::new(5, 6, 7, 8);
    levels_and_lengths(|kernels, x| {
        for format in FORMATS {
            let codes = by_chance(kernels, &x, format, key, 1000);
            assert_eq!(codes, by_chance(scalar, &x, format, key, 1000));
            let middle = x.len() / 3;
            let tail = by_chance(kernels, &x[middle..], format, key, 1000 + middle as u32);
            assert_eq!(codes[middle..], tail);
        }
    });
}

/// A magnitude below 2^-28 of the smallest code used to become zero always.
#[test]
fn chance_does_justice_to_what_is_less_than_a_draw_can_tell() {
    for format in FORMATS {
        for (part, negative) in [(0.25, false), (0.9, true), (1e-6, false)] {
            let magnitude = part * 2.0_f64.powi(-28) * value_of(1, format);
            let value = if negative { -magnitude } else { magnitude } as f32;
            let mut counts = Vec::new();
            for kernels in every_level() {
                let mut ups = 0;
                for seed in 0..500 {
                    let key = Key::new(seed, 3, 5, 7);
                    for low in 0..16 {
                        // The highest of all draws: it alone can make something of this.
                        let first = position_of(key, 0xFFFF_FFF0 | low).wrapping_sub(9);
                        let code = by_chance(kernels, &[value; 20], format, key, first)[9];
                        assert_eq!(code >> 7 == 1, negative);
                        ups += u32::from(code & 0x7F);
                        // Nor does it matter to what is more than a step.
                        let whole = value_of(3, format) as f32;
                        assert_eq!(by_chance(kernels, &[whole; 20], format, key, first), [3; 20]);
                    }
                }
                counts.push(ups);
            }
            counts.dedup();
            assert_eq!(counts.len(), 1);
            let n = 8000.0;
            let spread = 4.5 * (n * part * (1.0 - part)).sqrt() + 0.5;
            assert!(
                (f64::from(counts[0]) - n * part).abs() < spread,
                "{format:?} {part} {counts:?}"
            );
        }
    }
}
