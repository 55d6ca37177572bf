//! 8-bit floats with one power of two per block of entries.
//!
//! Micikevicius et al., "FP8 Formats for Deep Learning", 2022, in the formats of the Open Compute
//! Project ([`crate::simd::float8`]). E5M2 is the 1-5-2 format that Wang, Choi, Brand, Chen and
//! Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating Point Numbers", NeurIPS 2018,
//! train with. Scales per block follow Rouhani et al., "Microscaling Data Formats for Deep Learning",
//! 2023. As there, the scale is a power of two: multiplying by it is exact, so the only error is that
//! of rounding to a code, and encoding a decoded frame again gives the same frame.
//!
//! Codes are used only on the wire: readers add float32 values to float32 sums and never add codes.

use super::chance::Draw;
use super::code::Work;
use super::coding::Head;
use super::prologue::Prologue;
use super::scaled::{self, Scaled};
use super::{BLOCK, Code, Facts, Fit, Grouping, Quantize, power};
use crate::part::{Options, Part};
pub use crate::simd::float8::Format;
use crate::simd::{Kernels, Pair, Scaling};
use crate::{Error, Result};

/// A floating-point number of eight bits, times a power of two for each block.
///
/// Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float8 {
    /// How many bits the exponent and the mantissa have.
    pub format: Format,
    /// How values between two codes are rounded.
    pub rounding: Rounding,
    /// Entries that share a power of two, at least one; `None` rounds values unscaled.
    pub block: Option<u32>,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// How values between two codes are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// To the nearest code, ties to even.
    #[default]
    Nearest,
    /// Randomly to one of the two neighbours, without bias.
    Stochastic,
}

impl Part for Float8 {
    const KIND: &'static str = "float8";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            format: options.choose("format", &[("e5m2", Format::E5M2), ("e4m3", Format::E4M3)])?,
            rounding: options.choose(
                "rounding",
                &[("nearest", Rounding::Nearest), ("stochastic", Rounding::Stochastic)],
            )?,
            block: options.get("block")?,
            seed: options.get("seed")?,
        })
    }

    fn check(self) -> Result<()> {
        if self.block == Some(0) {
            return Err(Error::argument("block must be at least 1, got 0"));
        }
        Ok(())
    }

    fn examples() -> Vec<Self> {
        [
            (Format::E4M3, Rounding::Nearest, Some(256)),
            (Format::E5M2, Rounding::Stochastic, Some(7)),
            (Format::E5M2, Rounding::Nearest, Some(100_000)),
            (Format::E4M3, Rounding::Stochastic, None),
            (Format::E5M2, Rounding::Nearest, Some(1)),
        ]
        .map(|(format, rounding, block)| Self { format, rounding, block, seed: 5 })
        .to_vec()
    }
}

impl Quantize for Float8 {
    type Coding = Coding;

    fn facts(self) -> Facts {
        let seed = (self.rounding == Rounding::Stochastic).then_some(self.seed);
        Facts { seed, ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding { format: self.format, block: self.block }
    }

    fn fit(self) -> Fit<Self> {
        if self.block.is_some() { Fit::Peak(|q, peak| scale(peak, q.format)) } else { Fit::None }
    }
}

/// A floating-point number of eight bits, times the scale of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    format: Format,
    /// Entries that share a scale, at least one; none without scales.
    block: Option<u32>,
}

impl Code for Coding {
    fn head(self) -> Head {
        let variety = match self.format {
            Format::E5M2 => 0,
            Format::E4M3 => 1,
        };
        Head { variety, exponent: 0 }
    }

    fn prologue(self) -> Prologue {
        Prologue::of_len(self.block.unwrap_or(0))
    }

    fn parse(head: Head, section: &[u8]) -> Result<Self> {
        let format = if head.variety == 0 { Format::E5M2 } else { Format::E4M3 };
        let block = Prologue::read_len(section)?;
        Ok(Self { format, block: (block > 0).then_some(block) })
    }

    fn bits(self) -> u32 {
        8
    }

    fn grouping(self) -> Grouping {
        self.block.map_or(Grouping::None, Grouping::Ranks)
    }

    fn takes_scale(self, scale: f32) -> bool {
        power::is_at_most(scale, 127 - top(self.format))
    }

    fn are_valid(self, codes: &[u8]) -> bool {
        let largest = self.format.largest();
        let top = |codes: &[u8]| codes.iter().fold(0, |most, code| (code & 0x7F).max(most));
        codes.chunks(BLOCK).all(|codes| top(codes) <= largest)
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        scaled::encode(self, values, codes, work);
    }

    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        scaled::encode_left(self, values, codes, work);
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        scaled::decode(self, codes, values, work);
    }
}

impl Scaled for Coding {
    fn factors(self) -> impl Fn(f32) -> [f32; 2] {
        power::inverse
    }

    /// The sign in the highest bit.
    fn round(self, kernels: &Kernels, values: &[f32], to: Pair<'_>, draw: Draw, codes: &mut [u8]) {
        if draw.by_chance {
            kernels.float8_stochastic(values, self.format, to, draw.key, draw.first, codes);
        } else {
            kernels.float8_nearest(values, self.format, to, codes);
        }
    }

    fn round_left(
        self,
        kernels: &Kernels,
        values: &mut [f32],
        scaling: Scaling<'_>,
        draw: Draw,
        codes: &mut [u8],
    ) {
        let Draw { key, first, by_chance } = draw;
        if by_chance {
            kernels.float8_stochastic_left(values, self.format, scaling, key, first, codes);
        } else {
            kernels.float8_nearest_left(values, self.format, scaling, codes);
        }
    }

    fn widen(self, kernels: &Kernels, codes: &[u8], scales: &[f32], out: &mut [f32]) {
        kernels.float8_decode(codes, self.format, scales, out);
    }
}

/// Exponent of the largest finite code, whose significand is 1.75 in both formats.
const fn top(format: Format) -> i32 {
    match format {
        Format::E5M2 => 15,
        Format::E4M3 => 8,
    }
}

/// What codes are multiplied by: the smallest power of two that brings a magnitude of `peak` into
/// their range; zero for a block of zeros.
///
/// The largest codes reach 1.75 times 2^127 at most, and what is above saturates.
#[inline]
fn scale(peak: f32, format: Format) -> f32 {
    const QUARTER: u32 = 1 << 21;
    // Adding just under a quarter carries into the exponent where the significand exceeds 1.75.
    let above = (peak.to_bits() + (QUARTER - 1)) >> 23;
    let normal = above.saturating_sub(top(format) as u32);
    if (1..=254 - top(format) as u32).contains(&normal) {
        return f32::from_bits(normal << 23);
    }
    if peak == 0.0 {
        return 0.0;
    }
    let (exponent, significand) = power::split(peak);
    let fits = significand <= 1.75;
    power::of(exponent - top(format) + i32::from(!fits), 127 - top(format))
}
