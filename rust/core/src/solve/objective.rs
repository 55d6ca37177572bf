//! The matrix that descent needs.

use std::ops::Range;

use super::factor::APART;
use super::layer::Layer;
use crate::buffer::Buffer;
use crate::simd::product::Matrix;
use crate::{Result, allocate};

/// Columns of a block whose codes descend before the rest of it is told.
pub(super) const PIECE: usize = 128;

/// `H` in float32, times a power of two.
pub(super) struct Objective {
    rows: Buffer<f32>,
    stride: usize,
    pub power: f64,
    /// One over the diagonal; zero for inputs that are always zero.
    pub inverses: Vec<f32>,
    /// The sum of each row over the columns of its block, and over those rows.
    pub sums: Vec<f64>,
    pub totals: Vec<f64>,
}

impl Objective {
    pub fn new(layer: &Layer<'_>) -> Result<Self> {
        let (cols, block) = (layer.cols, layer.block);
        let largest = (0..cols).map(|i| layer.entry(i, i)).fold(0.0, f64::max);
        let power = libm::ldexp(1.0, -libm::frexp(largest).1);
        let stride = cols + APART;
        let mut rows = Buffer::zeros(cols * stride)?;
        let (mut inverses, mut sums) = (allocate::zeros(cols)?, allocate::zeros(cols)?);
        for (i, to) in rows.as_mut_slice().chunks_mut(stride).enumerate() {
            if layer.is_dead(i) {
                continue;
            }
            for (j, to) in to[..cols].iter_mut().enumerate() {
                *to = (layer.entry(i, j) * power) as f32;
            }
            inverses[i] = 1.0 / to[i];
            let own = &to[i / block * block..][..block];
            sums[i] = own.iter().map(|&x| f64::from(x)).sum();
        }
        let totals = sums.chunks(block).map(|sums| sums.iter().sum()).collect();
        Ok(Self { rows, stride, power, inverses, sums, totals })
    }

    /// From an entry on.
    pub fn from(&self, row: usize, column: usize) -> Matrix<'_> {
        let values = &self.rows.as_slice()[row * self.stride + column..];
        Matrix { values, stride: self.stride }
    }
}

/// The pieces of a block.
pub(super) fn pieces(block: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = block.end;
    block.step_by(PIECE).map(move |start| start..end.min(start + PIECE))
}
