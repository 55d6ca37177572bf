//! All codes, all rounding laws.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::simd::{Kernels, available_levels};

const ALL: [Quantizer; 4] = [
    Quantizer::Float32,
    Quantizer::BFloat16,
    Quantizer::Float16(Float16 { scaled: false }),
    Quantizer::Float16(Float16 { scaled: true }),
];

/// The coding with this exponent, where it has one.
fn coding(quantizer: Quantizer, exponent: i16) -> ValueCoding {
    match quantizer {
        Quantizer::Float16(Float16 { scaled }) => {
            ValueCoding::Float16(float16::Coding { exponent: scaled.then_some(exponent) })
        }
        other => other.coding(0, 0.0),
    }
}

/// The exponent that a quantizer chooses for these values.
fn scale_exponent(quantizer: Quantizer, values: &[f32]) -> i16 {
    quantizer.coding(0, peak(values)).exponent()
}

/// On every level the same.
fn encode(quantizer: Quantizer, exponent: i16, values: &[f32]) -> Vec<u8> {
    let (coding, count) = (coding(quantizer, exponent), values.len() as u64);
    on_every_level(|kernels| {
        let mut out = vec![0xAA; coding.value_len(count, count) as usize];
        let how = (quantizer, coding);
        super::encode(kernels, how, &Hints::default(), (count, None), values, &mut out);
        out
    })
}

/// On every level the same.
fn decode(quantizer: Quantizer, exponent: i16, bytes: &[u8]) -> Vec<f32> {
    let coding = coding(quantizer, exponent);
    let count = bytes.len() * 8 / coding.code_bits() as usize;
    let section = coding.section(count as u64, count as u64, bytes);
    let decoded = on_every_level(|kernels| {
        let mut out = vec![f32::NAN; count];
        Decoder::new(kernels, coding, section).decode(0, None, &mut out);
        bits(&out)
    });
    decoded.into_iter().map(f32::from_bits).collect()
}

fn on_every_level<T: PartialEq + std::fmt::Debug>(run: impl Fn(&'static Kernels) -> T) -> T {
    let mut runs = available_levels().into_iter().map(|level| run(Kernels::of(level).unwrap()));
    let first = runs.next().unwrap();
    runs.for_each(|other| assert_eq!(other, first));
    first
}

/// Codes of the scaled quantizer's own choice of exponent, decoded.
fn round(quantizer: Quantizer, values: &[f32]) -> Vec<f32> {
    let exponent = scale_exponent(quantizer, values);
    decode(quantizer, exponent, &encode(quantizer, exponent, values))
}

fn all_finite(quantizer: Quantizer, bytes: &[u8]) -> bool {
    coding(quantizer, 0).is_valid(Section { scales: &[], codes: bytes }, 300)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Any finite float32, each exponent as likely as any other; often one halfway between two codes
/// of 8 or of 11 bits.
fn finite() -> impl Strategy<Value = f32> {
    let bits = prop_oneof![
        any::<u32>(),
        any::<u32>().prop_map(|bits| bits & !0xFFFF | 0x8000),
        any::<u32>().prop_map(|bits| bits & !0x1FFF | 0x1000),
    ];
    bits.prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite())
}

#[test]
fn every_code_is_finite_or_not_as_ieee_says() {
    for code in 0..=u16::MAX {
        let mut bytes = vec![0; 2 * 300];
        bytes[2 * 270..2 * 271].copy_from_slice(&code.to_le_bytes());
        let is_bf16 = bf16::from_bits(code).is_finite();
        assert_eq!(all_finite(Quantizer::BFloat16, &bytes), is_bf16, "{code:#06x}");
        let is_f16 = f16::from_bits(code).is_finite();
        assert_eq!(
            all_finite(Quantizer::Float16(Float16 { scaled: true }), &bytes),
            is_f16,
            "{code:#06x}"
        );
    }
    for (value, finite) in [(f32::MAX, true), (f32::INFINITY, false), (f32::NAN, false)] {
        let mut bytes = vec![0; 4 * 300];
        bytes[4 * 290..4 * 291].copy_from_slice(&(-value).to_le_bytes());
        assert_eq!(all_finite(Quantizer::Float32, &bytes), finite, "{value}");
    }
}

#[test]
fn the_largest_values_saturate() {
    let halves = Quantizer::Float16(Float16 { scaled: false });
    let past = [65504.0, 65519.9, 65520.0, 1e6, f32::MAX];
    assert!(round(halves, &past).iter().all(|&v| v == 65504.0));
    assert!(round(halves, &past.map(|v| -v)).iter().all(|&v| v == -65504.0));
    let largest = bf16::MAX.to_f32();
    assert_eq!(round(Quantizer::BFloat16, &[f32::MAX, -f32::MAX]), [largest, -largest]);
    // Scaled codes reach up to 65504 * 2^112 and no further.
    let largest = 65504.0 * 2_f32.powi(112);
    let scaled = Quantizer::Float16(Float16 { scaled: true });
    assert_eq!(round(scaled, &[f32::MAX, -f32::MAX]), [largest, -largest]);
}

#[test]
fn zeros_need_no_scale_and_keep_their_sign() {
    for quantizer in ALL {
        assert_eq!(scale_exponent(quantizer, &[]), 0);
        assert_eq!(scale_exponent(quantizer, &[0.0, -0.0]), 0);
        assert_eq!(bits(&round(quantizer, &[0.0, -0.0])), bits(&[0.0, -0.0]));
    }
}

#[test]
fn the_scale_puts_the_largest_magnitude_just_below_the_largest_code() {
    let scaled = Quantizer::Float16(Float16 { scaled: true });
    for (value, exponent) in [
        (1.0, 15),
        (65504.0, 0),
        (f32::from_bits(65504.0_f32.to_bits() + 1), -1),
        (32752.0, 1),
        (f32::MIN_POSITIVE, 141),
        (f32::from_bits(1), 164),
        (f32::from_bits(0x007F_FFFF), 141),
        (f32::from_bits(0x007F_F000), 142),
        (f32::MAX, -112),
    ] {
        assert_eq!(scale_exponent(scaled, &[0.0, -value, value / 4.0]), exponent, "{value:e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bfloat16_is_the_nearest_and_saturates(value in finite()) {
        let nearest = bf16::from_f32(value);
        let expected = if nearest.is_finite() { nearest } else { bf16::MAX.copysign(nearest) };
        prop_assert_eq!(encode(Quantizer::BFloat16, 0, &[value]), expected.to_le_bytes());
    }

    #[test]
    fn float16_is_the_nearest_and_saturates(value in finite()) {
        let nearest = f16::from_f32(value);
        let expected = if nearest.is_finite() { nearest } else { f16::MAX.copysign(nearest) };
        let codes = encode(Quantizer::Float16(Float16 { scaled: false }), 0, &[value]);
        prop_assert_eq!(codes, expected.to_le_bytes());
    }

    /// The scale is right against float64, where products by powers of two are exact.
    #[test]
    fn scaled_float16_is_the_nearest_of_the_scaled(values in prop::collection::vec(finite(), 1..20)) {
        let quantizer = Quantizer::Float16(Float16 { scaled: true });
        let exponent = scale_exponent(quantizer, &values);
        prop_assert!(SCALE_EXPONENTS.contains(&exponent));
        let power = 2_f64.powi(exponent.into());
        let largest = values.iter().fold(0.0, |m, v| v.abs().max(m));
        let scaled = f64::from(largest) * power;
        prop_assert!(scaled <= 65504.0 || exponent == -112);
        prop_assert!(scaled * 2.0 > 65504.0 || largest == 0.0);
        for (value, rounded) in values.iter().zip(round(quantizer, &values)) {
            let exact = (f64::from(*value) * power).clamp(-65504.0, 65504.0);
            // half rounds from float64 once, to nearest even.
            let expected = f16::from_f64(exact).to_f64() / power;
            prop_assert_eq!(f64::from(rounded), expected, "{} at 2^{}", value, exponent);
        }
    }
}
