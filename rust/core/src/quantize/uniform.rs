//! A sign and a level of a uniform grid, randomly rounded without bias.
//!
//! Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
//! Quantization and Encoding", NeurIPS 2017, section 3.1, with a fixed number of bits per level. The
//! level is in the lower bits of a code, the sign in the highest ([`crate::simd::grid`]).

use std::ops::RangeInclusive;

use super::chance::Draw;
use super::code::Work;
use super::coding::Head;
use super::fit::one;
use super::prologue::Prologue;
use super::scaled::{self, Scaled};
use super::{Code, Facts, Fit, Grouping, Quantize, Summary};
use crate::part::{Options, Part};
use crate::simd::grid::Grid;
use crate::simd::{Kernels, Pair, Scaling};
use crate::{Error, Result};

/// A sign and a level of a uniform grid from zero to the norm of a block, stochastically rounded.
///
/// Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
/// NeurIPS 2017.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uniform {
    /// Bits per entry, including the sign, 2 to 8.
    pub bits: u8,
    /// Entries that share a norm, at least one.
    pub block: u32,
    /// Upper end of the grid.
    pub norm: Norm,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// What the grid of a block reaches up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Norm {
    /// The root of the sum of squares.
    #[default]
    L2,
    /// The largest magnitude.
    Max,
}

/// How many bits a code may have: a sign and at least one for the level.
const BITS: RangeInclusive<u8> = 2..=8;

impl Part for Uniform {
    const KIND: &'static str = "uniform";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            bits: options.get("bits")?,
            block: options.get("block")?,
            norm: options.choose("norm", &[("l2", Norm::L2), ("max", Norm::Max)])?,
            seed: options.get("seed")?,
        })
    }

    fn check(self) -> Result<()> {
        let Self { bits, block, .. } = self;
        if !BITS.contains(&bits) {
            return Err(Error::argument(format!("bits must be 2 to 8, got {bits}")));
        }
        if block == 0 {
            return Err(Error::argument("block must be at least 1, got 0"));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { bits: other.bits, ..self }
    }

    fn examples() -> Vec<Self> {
        [(4, 512, Norm::L2), (3, 100, Norm::Max), (8, 100_000, Norm::Max), (2, 1, Norm::L2)]
            .map(|(bits, block, norm)| Self { bits, block, norm, seed: u64::from(bits) })
            .to_vec()
    }
}

impl Quantize for Uniform {
    type Coding = Coding;

    fn facts(self) -> Facts {
        Facts { seed: Some(self.seed), ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding { bits: self.bits, block: self.block }
    }

    fn fit(self) -> Fit<Self> {
        match self.norm {
            Norm::Max => Fit::Peak(|_, peak| peak),
            Norm::L2 => Fit::Squares(|_, summary, _| one(norm(summary))),
        }
    }
}

/// A sign and a level between zero and the scale of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    bits: u8,
    /// Entries that share a scale, at least one.
    block: u32,
}

impl Code for Coding {
    fn prologue(self) -> Prologue {
        Prologue::of_bits(self.bits, self.block)
    }

    fn parse(_: Head, section: &[u8]) -> Result<Self> {
        let (bits, block) = Prologue::read_bits(section, &BITS, "levels")?;
        Ok(Self { bits, block })
    }

    fn bits(self) -> u32 {
        u32::from(self.bits)
    }

    fn grouping(self) -> Grouping {
        Grouping::Ranks(self.block)
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
        let grid = Grid::new(self.bits);
        move |scale| grid.factors(scale)
    }

    fn round(self, kernels: &Kernels, values: &[f32], to: Pair<'_>, draw: Draw, codes: &mut [u8]) {
        kernels.to_levels(values, Grid::new(self.bits), to, draw.key, draw.first, codes);
    }

    fn round_left(
        self,
        kernels: &Kernels,
        values: &mut [f32],
        scaling: Scaling<'_>,
        draw: Draw,
        codes: &mut [u8],
    ) {
        kernels.to_levels_left(values, Grid::new(self.bits), scaling, draw.key, draw.first, codes);
    }

    fn widen(self, kernels: &Kernels, codes: &[u8], scales: &[f32], out: &mut [f32]) {
        kernels.from_levels(codes, Grid::new(self.bits), scales, out);
    }
}

/// The norm of a block: never less than its largest magnitude, never more than a float32 holds.
fn norm(summary: &Summary) -> f32 {
    (summary.squares.sqrt() as f32).max(summary.peak()).min(f32::MAX)
}
