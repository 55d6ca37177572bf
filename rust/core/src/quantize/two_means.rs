//! One bit per entry: the mean of its column's values that are not below zero, or of those below.
//!
//! Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
//! Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014. Means are taken over all
//! entries of a column: given the partition by sign, no other two values have a smaller error.

use super::code::Work;
use super::coding::Head;
use super::prologue::Prologue;
use super::signs::{self, Signs};
use super::{Code, Fit, Grouping, Quantize, Scales, Summary};
use crate::part::{Options, Part};
use crate::{Error, Result};

/// One of two values: the mean of a column's entries >= 0, or of those below zero.
///
/// Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
/// Distributed Training of Speech DNNs", Interspeech 2014.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TwoMeans {
    /// Positions per column, at least one; `None` for a single column.
    pub column: Option<u32>,
}

impl Part for TwoMeans {
    const KIND: &'static str = "two_means";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { column: options.get("column")? })
    }

    fn check(self) -> Result<()> {
        if self.column == Some(0) {
            return Err(Error::argument("column must be at least 1, got 0"));
        }
        Ok(())
    }

    fn examples() -> Vec<Self> {
        [None, Some(77), Some(1)].map(|column| Self { column }).to_vec()
    }
}

impl Quantize for TwoMeans {
    type Coding = Coding;

    fn coding(self, numel: u64, _: f32) -> Coding {
        let all = numel.clamp(1, u64::from(u32::MAX)) as u32;
        Coding { column: self.column.unwrap_or(all) }
    }

    fn fit(self) -> Fit<Self> {
        Fit::Sides(|_, summary, _| scales(summary))
    }
}

/// One of two values, of each column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    /// Positions in a column, at least one.
    column: u32,
}

impl Code for Coding {
    fn prologue(self) -> Prologue {
        Prologue::of_len(self.column)
    }

    fn parse(_: Head, section: &[u8]) -> Result<Self> {
        match Prologue::read_len(section)? {
            0 => Err(Error::corrupt("columns of 0 positions")),
            column => Ok(Self { column }),
        }
    }

    fn bits(self) -> u32 {
        1
    }

    fn grouping(self) -> Grouping {
        Grouping::Positions(self.column)
    }

    fn scales(self) -> usize {
        2
    }

    fn takes_scale(self, scale: f32) -> bool {
        scale.is_finite()
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        signs::encode(values, codes, &work);
    }

    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        signs::encode_left(self, values, codes, work);
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        signs::decode(self, codes, values, work);
    }
}

impl Signs for Coding {
    fn sides(self, scales: &[[u8; 4]], ones: &mut [f32], zeros: &mut [f32]) {
        let pairs = scales.as_chunks::<2>().0;
        for ((one, zero), pair) in ones.iter_mut().zip(zeros).zip(pairs) {
            [*one, *zero] = pair.map(f32::from_le_bytes);
        }
    }
}

/// The mean of what is below zero, and of what is not; zero where there is nothing.
fn scales(summary: &Summary) -> Scales {
    let mean = |sum: f64, count: u64| (sum / count.max(1) as f64) as f32;
    let positives = summary.count - summary.negatives;
    let mut scales = Scales::default();
    scales[0] = mean(summary.below, summary.negatives);
    scales[1] = mean(summary.above, positives);
    scales
}
