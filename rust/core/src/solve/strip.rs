//! Rows beside one another.

use super::layer::Layer;
use crate::Result;
use crate::allocate;
use crate::simd::columns::{Grids, Lane, STRIP};

/// Strips that are solved together at most.
pub(super) const GROUP: usize = 8;

/// Some rows of a layer, and what they are rounded to.
#[derive(Debug)]
pub(super) struct Strip {
    /// Times the power of two of the frame.
    pub weights: Vec<Lane>,
    /// Whole numbers.
    pub codes: Vec<Lane>,
    /// Of each block.
    pub grids: Vec<Grids>,
    /// How many of its rows there are.
    pub rows: usize,
}

impl Strip {
    /// Rows, rounded to the nearest. Those that are missing are of zeros.
    pub fn new(layer: &Layer<'_>, rows: &[f32]) -> Result<Self> {
        let (cols, block, kernels) = (layer.cols, layer.block, layer.kernels);
        let mut weights = allocate::zeros::<Lane>(cols)?;
        let mut grids = allocate::zeros::<[f32; 2]>(rows.len() / block)?;
        let power = layer.coding.power();
        layer.affine.grids(kernels, layer.coding, (rows, block), &mut grids);
        let mut all = vec![Grids::ZERO; cols / block];
        for (row, values) in rows.chunks(cols).enumerate() {
            for (to, value) in weights.iter_mut().zip(values) {
                to[row] = value * power;
            }
            for (to, grid) in all.iter_mut().zip(&grids[row * (cols / block)..]) {
                to.set(row, *grid);
            }
        }
        let codes = allocate::zeros::<Lane>(cols)?;
        let mut strip = Self { weights, codes, grids: all, rows: rows.len() / cols };
        for column in 0..cols {
            strip.round(layer, column);
        }
        Ok(strip)
    }

    /// Rounds a column to the nearest.
    pub fn round(&mut self, layer: &Layer<'_>, column: usize) {
        let grids = &self.grids[column / layer.block];
        self.codes[column] = grids.nearest(layer.cells, &self.weights[column]);
    }

    /// The values of a column.
    pub fn values(&self, block: usize, column: usize) -> Lane {
        self.grids[column / block].values(&self.codes[column])
    }

    /// Codes less weights, of all columns.
    pub fn errors(&self, block: usize, out: &mut [Lane]) {
        for (column, out) in out.iter_mut().enumerate() {
            *out = self.values(block, column);
            for (out, weight) in out.iter_mut().zip(&self.weights[column]) {
                *out -= weight;
            }
        }
    }

    /// Has a row be what it was.
    pub fn restore(&mut self, row: usize, codes: &[Lane], grids: &[Grids]) {
        for (to, from) in self.codes.iter_mut().zip(codes) {
            to[row] = from[row];
        }
        for (to, from) in self.grids.iter_mut().zip(grids) {
            to.set(row, [from.steps[row], from.bases[row]]);
        }
    }

    /// Writes down the rows.
    pub fn write(&self, layer: &Layer<'_>, codes: &mut [u8], steps: &mut [f32], bases: &mut [f32]) {
        let (wide, unit) = (self.grids.len(), layer.coding.unit());
        for (row, codes) in codes.chunks_mut(layer.cols).enumerate() {
            for (code, lane) in codes.iter_mut().zip(&self.codes) {
                *code = lane[row] as u8;
            }
            let grids = steps[row * wide..].iter_mut().zip(&mut bases[row * wide..]);
            for ((step, base), grid) in grids.zip(&self.grids) {
                *step = grid.steps[row] * unit;
                *base = grid.bases[row] * unit;
            }
        }
    }
}

/// Sums over columns of the products of two strips, in float64.
pub(super) fn dots(one: &[Lane], other: &[Lane]) -> [f64; STRIP] {
    let mut sums = [0.0; STRIP];
    for (one, other) in one.iter().zip(other) {
        for i in 0..STRIP {
            sums[i] += f64::from(one[i]) * f64::from(other[i]);
        }
    }
    sums
}
