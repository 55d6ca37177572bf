//! Codes of an affine grid: each block has a step and a base, both float16 under one power of two.
//!
//! The grid that all packed weights share ([`fit`] says where it lies), and a quantizer like the
//! others. A value is `base + step * code` in float32, each operation rounded on its own.

mod fit;

use std::ops::RangeInclusive;

use half::f16;

use super::chance::Draw;
use super::code::{self, Scratch, Work};
use super::coding::Head;
use super::decode::{self, unpack};
use super::float16::scale_exponent;
use super::prologue::Prologue;
use super::spread::LONGEST;
use super::{Code, Facts, Fit, Grouping, Quantize, Rounding, power};
use crate::part::{Options, Part};
use crate::simd::Kernels;
use crate::simd::cells::Cells;
use crate::{Error, Result};

/// A code of a few bits on a grid whose step and base are those of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affine {
    /// Bits per entry, 1 to 8.
    pub bits: u8,
    /// Entries that share a step and a base, at least one; `None`: all of a frame.
    pub block: Option<u32>,
    /// Where the grid of a block lies.
    pub fit: AffineFit,
    /// How values between two codes are rounded.
    pub rounding: Rounding,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// Where the grid of a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AffineFit {
    /// Equal cells between the least and the largest value, read at their centres. Rounded randomly,
    /// from the least to the largest value, so that no value is beyond the grid.
    Range,
    /// Symmetric; zero is one of its values.
    Zero,
    /// Symmetric, up to a clip that follows from two moments: Choi, Venkataramani, Srinivasan,
    /// Gopalakrishnan, Wang, Chuang, "Accurate and Efficient 2-bit Quantized Neural Networks",
    /// MLSys 2019, section 3 (SAWB).
    Sawb,
    /// The one with the least squared error of some that shrink the range of [`AffineFit::Range`].
    #[default]
    Squares,
}

/// How many bits a code may have.
const BITS: RangeInclusive<u8> = 1..=8;

/// The exponents of a frame: no value of a frame with one of these is infinite, and two to its power
/// and to the inverse are normal numbers.
const EXPONENTS: RangeInclusive<i16> = -103..=126;

impl Part for Affine {
    const KIND: &'static str = "affine";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            bits: options.get("bits")?,
            block: options.get("block")?,
            fit: options.choose(
                "fit",
                &[
                    ("range", AffineFit::Range),
                    ("zero", AffineFit::Zero),
                    ("sawb", AffineFit::Sawb),
                    ("squares", AffineFit::Squares),
                ],
            )?,
            rounding: options.choose(
                "rounding",
                &[("nearest", Rounding::Nearest), ("stochastic", Rounding::Stochastic)],
            )?,
            seed: options.get("seed")?,
        })
    }

    fn check(self) -> Result<()> {
        let Self { bits, block, fit, rounding, .. } = self;
        if !BITS.contains(&bits) {
            return Err(Error::argument(format!("bits must be 1 to 8, got {bits}")));
        }
        if block == Some(0) {
            return Err(Error::argument("block must be at least 1, got 0"));
        }
        if fit == AffineFit::Zero && bits == 1 {
            return Err(Error::argument("fit=\"zero\" needs at least 2 bits, got 1"));
        }
        if rounding == Rounding::Stochastic && matches!(fit, AffineFit::Sawb | AffineFit::Squares) {
            return Err(Error::argument(
                "rounding=\"stochastic\" needs fit=\"range\" or \"zero\": the other grids do not reach all values",
            ));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { bits: other.bits, ..self }
    }

    fn examples() -> Vec<Self> {
        [
            (4, Some(64), AffineFit::Squares, Rounding::Nearest),
            (8, None, AffineFit::Sawb, Rounding::Nearest),
            (3, Some(100), AffineFit::Zero, Rounding::Stochastic),
            (2, Some(100_000), AffineFit::Sawb, Rounding::Nearest),
            (5, Some(1), AffineFit::Range, Rounding::Nearest),
            (1, Some(7), AffineFit::Range, Rounding::Stochastic),
        ]
        .map(|(bits, block, fit, rounding)| Self { bits, block, fit, rounding, seed: 6 })
        .to_vec()
    }
}

impl Affine {
    /// Step and base of each block of `len` values in a row, times [`Coding::power`].
    pub(crate) fn grids(
        self,
        kernels: &Kernels,
        coding: Coding,
        (values, len): (&[f32], usize),
        out: &mut [[f32; 2]],
    ) {
        const MANY: usize = 32;
        for (values, out) in values.chunks(MANY * len).zip(out.chunks_mut(MANY)) {
            let mut halves = [[0; 4]; MANY];
            let halves = &mut halves[..out.len()];
            fit::groups(self, kernels, coding.exponent, (values, len), halves);
            kernels.decode_f16(halves.as_flattened().as_chunks().0, 1.0, out.as_flattened_mut());
        }
    }
}

impl Quantize for Affine {
    type Coding = Coding;

    fn facts(self) -> Facts {
        let seed = (self.rounding == Rounding::Stochastic).then_some(self.seed);
        Facts { seed, needs_peak: true, ..Facts::default() }
    }

    fn coding(self, _: u64, peak: f32) -> Coding {
        // One less than what just fits: a step or a base may be twice the largest magnitude.
        let exponent = match scale_exponent(peak) {
            0 if peak == 0.0 => 0,
            most => (most - 1).clamp(*EXPONENTS.start(), *EXPONENTS.end()),
        };
        Coding { bits: self.bits, block: self.block.unwrap_or(u32::MAX), exponent }
    }

    fn fit(self) -> Fit<Self> {
        Fit::Groups(fit::groups)
    }
}

/// A code on the grid of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    bits: u8,
    /// Entries that share a step and a base, at least one.
    block: u32,
    /// Steps and bases were multiplied by two to this power.
    exponent: i16,
}

impl Coding {
    /// Bits of a code, entries of a block, and what steps and bases are multiplied by.
    pub(crate) fn grid(self) -> (u8, u32, f32) {
        (self.bits, self.block, self.unit())
    }

    /// The same with codes of so many bits.
    pub(crate) fn with_bits(self, bits: u32) -> Self {
        Self { bits: bits as u8, ..self }
    }

    /// Two to the power of the exponent: what values are multiplied by to lie on grids of float16.
    pub(crate) fn power(self) -> f32 {
        power::of(i32::from(self.exponent), 127)
    }

    /// Two to the power of minus the exponent.
    pub(crate) fn unit(self) -> f32 {
        power::of(-i32::from(self.exponent), 127)
    }
}

impl Code for Coding {
    fn exponents(_: usize) -> RangeInclusive<i16> {
        EXPONENTS
    }

    fn head(self) -> Head {
        Head { variety: 0, exponent: self.exponent }
    }

    fn prologue(self) -> Prologue {
        Prologue::of_bits(self.bits, self.block)
    }

    fn parse(head: Head, section: &[u8]) -> Result<Self> {
        let (bits, block) = Prologue::read_bits(section, &BITS, "an affine grid")?;
        Ok(Self { bits, block, exponent: head.exponent })
    }

    fn bits(self) -> u32 {
        u32::from(self.bits)
    }

    fn grouping(self) -> Grouping {
        Grouping::Ranks(self.block)
    }

    fn takes_scale(self, scale: f32) -> bool {
        let [a, b, c, d] = scale.to_le_bytes();
        let [step, base] = [[a, b], [c, d]].map(f16::from_le_bytes);
        step.is_finite() && step.is_sign_positive() && base.is_finite()
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        let Work { kernels, key, place, scratch, .. } = work;
        let Scratch { codes: bytes, factors, .. } = scratch;
        let factors = factors.get_or_insert_default();
        let cells = Cells::new(self.bits, self.power());
        code::in_blocks(self.bits(), values, codes, place, |values, out, place| {
            let groups = (self.grouping(), self.scales());
            let grids = factors.over(kernels, groups, place, values.len(), |w, inverses, bases| {
                words(kernels, w, 1.0, inverses, bases);
                for step in inverses {
                    *step = if *step > 0.0 { 1.0 / *step } else { 0.0 };
                }
            });
            let draw = Draw::of(key, place.drawn as u32);
            code::pack(kernels, (self.bits(), values.len()), bytes, out, |codes| {
                if draw.by_chance {
                    kernels.to_random_cells(values, cells, grids, draw.key, draw.first, codes);
                } else {
                    kernels.to_cells(values, cells, grids, codes);
                }
            });
        });
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        let Work { kernels, place, scratch, .. } = work;
        let Scratch { codes: bytes, multiples, .. } = scratch;
        let bytes = bytes.get_or_insert([0; LONGEST]);
        let multiples = multiples.get_or_insert_default();
        let (groups, bits, unit) = ((self.grouping(), self.scales()), self.bits(), self.unit());
        decode::in_blocks(bits, codes, values, place, |codes, out, place| {
            let codes = unpack(kernels, bits, codes, &mut bytes[..out.len()]);
            let pair = multiples.over(kernels, groups, place, out.len(), |w, steps, bases| {
                words(kernels, w, unit, steps, bases);
            });
            kernels.from_cells(codes, pair, out);
        });
    }
}

/// Steps and bases of blocks, times a factor.
fn words(kernels: &Kernels, words: &[[u8; 4]], factor: f32, steps: &mut [f32], bases: &mut [f32]) {
    const MANY: usize = 32;
    let blocks = steps.chunks_mut(MANY).zip(bases.chunks_mut(MANY));
    for (words, (steps, bases)) in words.chunks(MANY).zip(blocks) {
        let mut numbers = [[0.0; 2]; MANY];
        let numbers = &mut numbers[..words.len()];
        kernels.decode_f16(words.as_flattened().as_chunks().0, factor, numbers.as_flattened_mut());
        for ((step, base), number) in steps.iter_mut().zip(bases).zip(numbers) {
            [*step, *base] = *number;
        }
    }
}

#[cfg(test)]
mod tests;
