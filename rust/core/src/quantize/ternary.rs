//! Minus, zero or plus one magnitude, randomly rounded without bias.
//!
//! Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
//! Distributed Deep Learning", NeurIPS 2017, algorithm 1 and section 3.3 (clipping). Values are
//! rounded like those of [`super::uniform`] with two bits: a sign and a grid of one level.

use super::chance::Draw;
use super::code::{Scratch, Work};
use super::coding::Head;
use super::decode;
use super::fit::one;
use super::scaled::{self, Scaled, each_scale};
use super::spread::LONGEST;
use super::{Code, Facts, Fit, Grouping, Quantize, Summary};
use crate::part::{Options, Part};
use crate::simd::grid::Grid;
use crate::simd::{Kernels, Pair, Scaling};
use crate::{Error, Result};

/// Minus, zero or plus one magnitude, stochastically rounded.
///
/// Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
/// Learning", NeurIPS 2017.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ternary {
    /// Clip values at this many standard deviations; `None` for no clipping.
    pub clip: Option<f32>,
    /// What the random numbers begin from.
    pub seed: u64,
}

/// Bits of a code.
const BITS: u8 = 2;

/// Magnitudes below this share of their root mean square are what rounding leaves of nothing.
const NOTHING: f64 = 1e-12;

impl Part for Ternary {
    const KIND: &'static str = "ternary";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { clip: options.get("clip")?, seed: options.get("seed")? })
    }

    fn check(self) -> Result<()> {
        match self.clip {
            Some(clip) if !(clip > 0.0 && clip.is_finite()) => {
                Err(Error::argument(format!("clip must be finite and above 0, got {clip}")))
            }
            _ => Ok(()),
        }
    }

    fn examples() -> Vec<Self> {
        [None, Some(2.5)].map(|clip| Self { clip, seed: 3 }).to_vec()
    }
}

impl Quantize for Ternary {
    type Coding = Coding;

    fn facts(self) -> Facts {
        Facts { seed: Some(self.seed), ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding
    }

    fn fit(self) -> Fit<Self> {
        match self.clip {
            None => Fit::Peak(|_, peak| peak),
            Some(_) => Fit::Sums(|quantizer, summary, _| one(scale(summary, quantizer.clip))),
        }
    }
}

/// Minus, zero or plus, and one magnitude for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding;

impl Code for Coding {
    fn parse(_: Head, _: &[u8]) -> Result<Self> {
        Ok(Self)
    }

    fn bits(self) -> u32 {
        u32::from(BITS)
    }

    fn grouping(self) -> Grouping {
        Grouping::Whole
    }

    fn are_valid(self, codes: &[u8]) -> bool {
        // No code is three.
        codes.iter().fold(0, |any, byte| any | byte & byte >> 1 & 0x55) == 0
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        scaled::encode(self, values, codes, work);
    }

    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        scaled::encode_left(self, values, codes, work);
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        let Work { kernels, place, scratch, .. } = work;
        let Scratch { codes: bytes, multiples, .. } = scratch;
        let bytes = bytes.get_or_insert([0; LONGEST]);
        let multiples = multiples.get_or_insert_default();
        let groups = (self.grouping(), self.scales());
        decode::in_blocks(self.bits(), codes, values, place, |codes, out, place| {
            let bytes = &mut bytes[..out.len()];
            kernels.unpack(codes, self.bits(), bytes);
            to_levels(bytes);
            let [scales, _] = multiples.over(kernels, groups, place, out.len(), each_scale(self));
            self.widen(kernels, bytes, scales, out);
        });
    }
}

impl Scaled for Coding {
    fn factors(self) -> impl Fn(f32) -> [f32; 2] {
        let grid = Grid::new(BITS);
        move |scale| grid.factors(scale)
    }

    fn round(self, kernels: &Kernels, values: &[f32], to: Pair<'_>, draw: Draw, codes: &mut [u8]) {
        kernels.to_levels(values, Grid::new(BITS), to, draw.key, draw.first, codes);
        from_levels(codes);
    }

    fn round_left(
        self,
        kernels: &Kernels,
        values: &mut [f32],
        scaling: Scaling<'_>,
        draw: Draw,
        codes: &mut [u8],
    ) {
        kernels.to_levels_left(values, Grid::new(BITS), scaling, draw.key, draw.first, codes);
        from_levels(codes);
    }

    fn widen(self, kernels: &Kernels, codes: &[u8], scales: &[f32], out: &mut [f32]) {
        kernels.from_levels(codes, Grid::new(BITS), scales, out);
    }
}

/// The magnitude to send: the largest of values clipped at `clip` standard deviations.
///
/// Values that are all equal have no deviation to speak of, and are not clipped.
fn scale(summary: &Summary, clip: Option<f32>) -> f32 {
    let mean = (summary.above + summary.below) / summary.count.max(1) as f64;
    let square = summary.mean_square();
    let variance = square - mean * mean;
    match clip {
        Some(clip) if variance > NOTHING * square => {
            summary.peak().min((f64::from(clip) * variance.sqrt()) as f32)
        }
        _ => summary.peak(),
    }
}

/// Zero, one for plus, two for minus: from a level and a sign, whose three is minus.
fn from_levels(codes: &mut [u8]) {
    for code in codes {
        *code -= *code >> 1;
    }
}

/// The inverse.
fn to_levels(codes: &mut [u8]) {
    for code in codes {
        *code += *code >> 1;
    }
}
