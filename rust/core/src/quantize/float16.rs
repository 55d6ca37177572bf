//! IEEE binary16, after an exact multiplication by a power of two.

use std::ops::RangeInclusive;

use super::code::Work;
use super::coding::Head;
use super::{BLOCK, Code, Facts, Quantize, finite_halves};
use crate::Result;
use crate::part::{Options, Part};
use crate::simd::Kernels;

/// Exponents that scaled float16 can have: from the largest float32 to the smallest.
pub const SCALE_EXPONENTS: RangeInclusive<i16> = -112..=164;

/// IEEE binary16, rounded to nearest even; saturates at 65504.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float16 {
    /// Multiply the values of each frame by a power of two, so that the largest one just fits.
    pub scaled: bool,
}

impl Part for Float16 {
    const KIND: &'static str = "float16";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { scaled: options.get("scaled")? })
    }

    fn examples() -> Vec<Self> {
        [false, true].map(|scaled| Self { scaled }).to_vec()
    }
}

impl Quantize for Float16 {
    type Coding = Coding;

    fn facts(self) -> Facts {
        Facts { needs_peak: self.scaled, ..Facts::default() }
    }

    fn coding(self, _: u64, peak: f32) -> Coding {
        Coding { exponent: self.scaled.then(|| scale_exponent(peak)) }
    }
}

/// IEEE binary16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    /// Values were multiplied by two to this power: a variety of its own.
    pub(super) exponent: Option<i16>,
}

/// Which variety has an exponent.
const SCALED: usize = 1;

impl Code for Coding {
    fn exponents(variety: usize) -> RangeInclusive<i16> {
        if variety == SCALED { SCALE_EXPONENTS } else { 0..=0 }
    }

    fn head(self) -> Head {
        let variety = if self.exponent.is_some() { SCALED } else { 0 };
        Head { variety, exponent: self.exponent.unwrap_or(0) }
    }

    fn parse(head: Head, _: &[u8]) -> Result<Self> {
        Ok(Self { exponent: (head.variety == SCALED).then_some(head.exponent) })
    }

    fn bits(self) -> u32 {
        16
    }

    fn are_valid(self, codes: &[u8]) -> bool {
        finite_halves(codes, 0x7C00)
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        encode(work.kernels, self.exponent.unwrap_or(0), values, codes);
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        decode(work.kernels, self.exponent.unwrap_or(0), codes, values);
    }
}

/// The exponent `e` such that values are multiplied by `2^e` before they are rounded.
///
/// The largest one that keeps the largest magnitude, `peak`, at or below 65504, but not below -112:
/// there the codes already reach the largest float32, and what is above saturates. Zero if all
/// values are zero.
pub(super) fn scale_exponent(peak: f32) -> i16 {
    let bits = peak.to_bits();
    if bits == 0 {
        return 0;
    }
    // magnitude = significand * 2^(exponent - 23), with bit 23 the leading one of the significand
    let shift = (bits.leading_zeros() as i32 - 8).max(0);
    let (significand, exponent) = match bits >> 23 {
        0 => (bits << shift, -126 - shift),
        biased => (bits & 0x7F_FFFF | 0x80_0000, biased as i32 - 127),
    };
    // 65504 = 0xFFE000 * 2^(15 - 23)
    let fits = significand <= 0xFF_E000;
    let scale = if fits { 15 - exponent } else { 14 - exponent };
    (scale as i16).max(*SCALE_EXPONENTS.start())
}

fn encode(kernels: &Kernels, exponent: i16, values: &[f32], out: &mut [u8]) {
    let (codes, _) = out.as_chunks_mut();
    if let Some(factor) = normal_power(i64::from(exponent)) {
        kernels.narrow_f16(values, factor, codes);
        return;
    }
    let mut scaled = [0.0; BLOCK];
    for (values, codes) in values.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)) {
        let scaled = &mut scaled[..values.len()];
        scale(i64::from(exponent), values, scaled);
        kernels.narrow_f16(scaled, 1.0, codes);
    }
}

fn decode(kernels: &Kernels, exponent: i16, bytes: &[u8], out: &mut [f32]) {
    let (codes, _) = bytes.as_chunks();
    if let Some(factor) = normal_power(-i64::from(exponent)) {
        kernels.decode_f16(codes, factor, out);
        return;
    }
    let mut plain = [0.0; BLOCK];
    for (out, codes) in out.chunks_mut(BLOCK).zip(codes.chunks(BLOCK)) {
        let plain = &mut plain[..codes.len()];
        kernels.decode_f16(codes, 1.0, plain);
        scale(-i64::from(exponent), plain, out);
    }
}

/// `out = values * 2^exponent`, rounded once: the product is exact in float64.
///
/// For powers that are no normal float32, which only frames of magnitudes below 2^-111 need; the
/// others round once in float32.
fn scale(exponent: i64, values: &[f32], out: &mut [f32]) {
    // Clamped, so that any exponent gives a defined power; frames hold none outside of ±164.
    let factor = f64::from_bits(((exponent.clamp(-1000, 1000) + 1023) as u64) << 52);
    out.iter_mut().zip(values).for_each(|(out, x)| *out = (f64::from(*x) * factor) as f32);
}

/// `2^exponent`, if that is a normal float32.
fn normal_power(exponent: i64) -> Option<f32> {
    (-126..=127).contains(&exponent).then(|| f32::from_bits(((exponent + 127) as u32) << 23))
}
