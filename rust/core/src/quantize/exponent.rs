//! A sign and a randomly rounded power of two, unbiased: eight bits per entry.
//!
//! Horváth, Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed
//! Deep Learning", MSML 2022, definition 1. The paper always uses the powers from 2^-109 to 2^18. Here the largest of the
//! 127 powers of a block is the smallest one that is not below the block's largest magnitude. So no
//! value is too large, and only values below 2^-126 of that power are randomly rounded to zero or to
//! the smallest power.

use std::ops::RangeInclusive;

use super::chance::Draw;
use super::code::Work;
use super::coding::Head;
use super::prologue::Prologue;
use super::scaled::{self, Scaled};
use super::{Code, Facts, Fit, Grouping, Quantize, power};
use crate::part::{Options, Part};
use crate::simd::{Kernels, Pair, Scaling};
use crate::{Error, Result};

/// A sign and a power of two, stochastically rounded.
///
/// Horváth et al., "Natural Compression for Distributed Deep Learning", MSML 2022.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exponent {
    /// What the random numbers begin from.
    pub seed: u64,
}

/// Entries of a block that a writer makes: what a cache can hold, for one read of the tensor.
const BLOCK: u32 = 2048;

/// The exponents that the largest power of a block may have.
const TOP: RangeInclusive<i32> = -126..=127;

impl Part for Exponent {
    const KIND: &'static str = "exponent";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { seed: options.get("seed")? })
    }

    fn examples() -> Vec<Self> {
        [0, 4].map(|seed| Self { seed }).to_vec()
    }
}

impl Quantize for Exponent {
    type Coding = Coding;

    fn facts(self) -> Facts {
        Facts { seed: Some(self.seed), ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding { block: BLOCK }
    }

    fn fit(self) -> Fit<Self> {
        Fit::Peak(|_, peak| scale(peak))
    }
}

/// A sign and a power of two, times the scale of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    /// Entries that share a scale, at least one.
    block: u32,
}

impl Code for Coding {
    fn prologue(self) -> Prologue {
        Prologue::of_len(self.block)
    }

    fn parse(_: Head, section: &[u8]) -> Result<Self> {
        match Prologue::read_len(section)? {
            0 => Err(Error::corrupt("exponents in blocks of 0 entries")),
            block => Ok(Self { block }),
        }
    }

    fn bits(self) -> u32 {
        8
    }

    fn grouping(self) -> Grouping {
        Grouping::Ranks(self.block)
    }

    fn takes_scale(self, scale: f32) -> bool {
        let normal = scale == 0.0 || scale >= f32::MIN_POSITIVE;
        power::is_at_most(scale, *TOP.end()) && normal
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
    /// The smallest scale above zero is a normal number: one factor is enough.
    fn factors(self) -> impl Fn(f32) -> [f32; 2] {
        |scale| [if scale > 0.0 { 1.0 / scale } else { 0.0 }, 1.0]
    }

    /// The sign in the highest bit.
    fn round(self, kernels: &Kernels, values: &[f32], to: Pair<'_>, draw: Draw, codes: &mut [u8]) {
        kernels.exponent_encode(values, to[0], draw.key, draw.first, codes);
    }

    fn round_left(
        self,
        kernels: &Kernels,
        values: &mut [f32],
        scaling: Scaling<'_>,
        draw: Draw,
        codes: &mut [u8],
    ) {
        kernels.exponent_left(values, scaling, draw.key, draw.first, codes);
    }

    fn widen(self, kernels: &Kernels, codes: &[u8], scales: &[f32], out: &mut [f32]) {
        kernels.exponent_decode(codes, scales, out);
    }
}

/// The first power of two that is not below the largest magnitude; zero for a block of zeros.
///
/// There is none above 2^127: what exceeds it becomes that.
fn scale(peak: f32) -> f32 {
    if peak == 0.0 {
        return 0.0;
    }
    let (exponent, significand) = power::split(peak);
    let above = exponent + i32::from(significand > 1.0);
    power::of(above.max(*TOP.start()), *TOP.end())
}
