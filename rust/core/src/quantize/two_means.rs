//! One bit per entry: the mean of its column's values that are not below zero, or of those below.
//!
//! Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
//! Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014. Means are taken over all
//! entries of a column: given the partition by sign, no other two values have a smaller error.

use super::{Summary, ValueCoding};
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

/// Bytes of parameters: the length of a column.
pub(super) const PROLOGUE: usize = 4;

pub(super) fn parse(prologue: [u8; 8]) -> Result<ValueCoding> {
    let [a, b, c, d, ..] = prologue;
    match u32::from_le_bytes([a, b, c, d]) {
        0 => Err(Error::corrupt("columns of 0 positions")),
        column => Ok(ValueCoding::TwoMeans { column }),
    }
}

/// The mean of what is below zero, and of what is not; zero where there is nothing.
pub(super) fn scales(summary: &Summary) -> [f32; 2] {
    let mean = |sum: f64, count: u64| (sum / count.max(1) as f64) as f32;
    let positives = summary.count - summary.negatives;
    [mean(summary.below, summary.negatives), mean(summary.above, positives)]
}
