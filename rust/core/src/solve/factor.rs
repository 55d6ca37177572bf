//! `H = Lᵀ D L`: L has ones on its diagonal and zeros above it.
//!
//! Then `e H eᵀ` is the sum over i of `d_i (e_i + sum over j < i of L_ij e_j)²`. With `e = q - w`, each term is zero
//! where `q_i` is `w_i - sum over j < i of L_ij (q_j - w_j)`: rounding that, column by column, is what GPTQ does, without
//! an inverse (Chee, Cai, Kuleshov, De Sa, "`QuIP`: 2-Bit Quantization of Large Language Models With Guarantees",
//! NeurIPS 2023, section 3: LDLQ, and its equivalence to GPTQ).
//!
//! In float64, from the last rows to the first, by panels of rows: what rows below a panel take off it are
//! products, and so is what the inverse of its own triangle makes of the rest.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use bytemuck::Pod;

use super::gram::go_on;
use super::layer::Layer;
use crate::buffer::Buffer;
use crate::simd::product::{Matrix, MatrixMut};
use crate::{Error, Result, allocate, pool};

/// Rows of a panel.
pub(super) const PANEL: usize = 128;

/// Columns of a panel that a thread takes at a time.
const WIDTH: usize = 256;

/// Between two rows, so that those of a tile do not contend for lines of a cache.
pub(super) const APART: usize = 16;

/// A factor for columns in the order in which they are rounded.
#[derive(Debug)]
pub(super) struct Factor {
    /// The columns, most input first; not those of inputs that are always zero.
    pub order: Vec<u32>,
    /// D.
    pub pivots: Vec<f64>,
    lower: Lower<f32>,
}

impl Factor {
    /// Factorises what the objective of a layer is made of.
    pub fn new(layer: &Layer<'_>, stop: &AtomicBool) -> Result<Self> {
        let mut order: Vec<u32> =
            (0..layer.cols as u32).filter(|&i| !layer.is_dead(i as usize)).collect();
        let diagonal = |&i: &u32| layer.entry(i as usize, i as usize);
        order.sort_by(|a, b| diagonal(b).total_cmp(&diagonal(a)));
        let mut wide = Lower::<f64>::zeros(order.len())?;
        for (i, &row) in order.iter().enumerate() {
            for (to, &column) in wide.row(i)[..=i].iter_mut().zip(&order) {
                *to = layer.entry(row as usize, column as usize);
            }
        }
        let mut pivots = vec![0.0; order.len()];
        for start in (0..order.len()).step_by(PANEL).rev() {
            go_on(stop)?;
            wide.panel(layer, start..order.len().min(start + PANEL), &mut pivots)?;
        }
        let mut lower = Lower::<f32>::zeros(order.len())?;
        for (to, from) in lower.values.as_mut_slice().iter_mut().zip(wide.values.as_slice()) {
            *to = *from as f32;
        }
        Ok(Self { order, pivots, lower })
    }

    /// From an entry on, as far as rows are of one panel.
    pub fn from(&self, row: usize, column: usize) -> Matrix<'_> {
        self.lower.from(row, column)
    }
}

/// The lower half of a square matrix, by panels, each of the columns that its rows reach.
///
/// While a matrix of float64 is factorised, panels that are done are of the factor, and those above them what is left
/// of the matrix.
#[derive(Debug)]
struct Lower<T> {
    values: Buffer<T>,
}

impl<T: Pod> Lower<T> {
    fn zeros(count: usize) -> Result<Self> {
        let (panels, rows) = (count / PANEL, count % PANEL);
        Ok(Self { values: Buffer::zeros(Self::start(panels) + rows * Self::stride(panels))? })
    }

    fn stride(panel: usize) -> usize {
        (panel + 1) * PANEL + APART
    }

    /// Where a panel starts: after all strides of those before it.
    fn start(panel: usize) -> usize {
        PANEL * (panel * (panel + 1) / 2 * PANEL + panel * APART)
    }

    fn at(row: usize) -> usize {
        Self::start(row / PANEL) + row % PANEL * Self::stride(row / PANEL)
    }

    fn row(&mut self, row: usize) -> &mut [T] {
        &mut self.values.as_mut_slice()[Self::at(row)..][..Self::stride(row / PANEL)]
    }

    fn from(&self, row: usize, column: usize) -> Matrix<'_, T> {
        let values = &self.values.as_slice()[Self::at(row) + column..];
        Matrix { values, stride: Self::stride(row / PANEL) }
    }
}

impl Lower<f64> {
    /// Factorises some rows, of which those below are done.
    fn panel(&mut self, layer: &Layer<'_>, rows: Range<usize>, pivots: &mut [f64]) -> Result<()> {
        let (kernels, many, below) = (layer.kernels, rows.len(), pivots.len() - rows.end);
        let mut taken = allocate::zeros::<f64>(many * below)?;
        for (k, pivot) in pivots[rows.end..].iter().enumerate() {
            let from = &self.from(rows.end + k, rows.start).values[..many];
            for (i, share) in from.iter().enumerate() {
                taken[i * below + k] = -share * pivot;
            }
        }
        // What panels below take off some columns, from the first panel to the last.
        let take = |this: &Self, column: usize, to: &mut [f64], wide: usize| {
            for (k, row) in (0..below).zip(rows.end..).step_by(PANEL) {
                kernels.add_product_f64(
                    MatrixMut { values: to, stride: wide },
                    Matrix { values: &taken[k..], stride: below },
                    this.from(row, column),
                    [many, PANEL.min(below - k), wide],
                );
            }
        };
        // The panel's own columns first.
        let mut own = allocate::zeros::<f64>(many * many)?;
        for (i, own) in own.chunks_mut(many).enumerate() {
            own[..=i].copy_from_slice(&self.from(rows.start + i, rows.start).values[..=i]);
        }
        let before: Vec<f64> = (0..many).map(|i| own[i * many + i]).collect();
        take(self, rows.start, &mut own, many);
        triangle(&mut own, &before, &mut pivots[rows.clone()])?;
        let inverse = inverse(&own, &pivots[rows.clone()])?;
        let inverse = Matrix { values: &inverse, stride: many };
        // And then those before them.
        let mut fresh = allocate::zeros::<f64>(many * rows.start)?;
        let mut parts: Vec<_> = fresh.chunks_mut(many * WIDTH).collect();
        let count = parts.len();
        let this = &*self;
        pool::share(layer.threads, count, 1, &mut parts, &|numbers, parts| {
            let mut left = vec![0.0; PANEL * WIDTH];
            for (number, part) in numbers.zip(parts) {
                let (column, wide) = (number * WIDTH, part.len() / many);
                let left = &mut left[..part.len()];
                for (i, left) in left.chunks_mut(wide).enumerate() {
                    left.copy_from_slice(&this.from(rows.start + i, column).values[..wide]);
                }
                take(this, column, left, wide);
                let to = MatrixMut { values: part, stride: wide };
                let left = Matrix { values: left, stride: wide };
                kernels.add_product_f64(to, inverse, left, [many, many, wide]);
            }
        });
        for (i, own) in own.chunks(many).enumerate() {
            let to = &mut self.row(rows.start + i)[..rows.end];
            to[rows.start..].copy_from_slice(own);
            for (number, part) in fresh.chunks(many * WIDTH).enumerate() {
                let wide = part.len() / many;
                to[number * WIDTH..][..wide].copy_from_slice(&part[i * wide..][..wide]);
            }
        }
        Ok(())
    }
}

/// Factorises a small matrix, of which the lower half is given, in place.
fn triangle(matrix: &mut [f64], before: &[f64], pivots: &mut [f64]) -> Result<()> {
    // What rounding leaves of a diagonal that should be zero.
    const ROUNDED: f64 = 1e-12;
    let many = pivots.len();
    for i in (0..many).rev() {
        let (above, row) = matrix.split_at_mut(i * many);
        let pivot = row[i];
        let row = &mut row[..many];
        let is_positive = pivot > before[i] * ROUNDED;
        if !is_positive {
            return Err(Error::argument(
                "the Gram matrix with damp on its diagonal is singular: give a larger damp",
            ));
        }
        pivots[i] = pivot;
        row[i] = 1.0;
        row[i + 1..].fill(0.0);
        for share in &mut row[..i] {
            *share /= pivot;
        }
        for (r, above) in above.chunks_mut(many).enumerate() {
            let taken = row[r] * pivot;
            for (x, share) in above[..=r].iter_mut().zip(&*row) {
                *x -= taken * share;
            }
        }
    }
    Ok(())
}

/// The inverse of `Lᵀ D` of a small L.
fn inverse(lower: &[f64], pivots: &[f64]) -> Result<Vec<f64>> {
    let many = pivots.len();
    let mut out = allocate::zeros::<f64>(many * many)?;
    for i in (0..many).rev() {
        let (above, below) = out.split_at_mut((i + 1) * many);
        let row = &mut above[i * many..];
        row[i] = 1.0;
        for (k, below) in below.chunks(many).enumerate() {
            let share = lower[(i + 1 + k) * many + i];
            for (x, below) in row[i + 1..].iter_mut().zip(&below[i + 1..]) {
                *x -= share * below;
            }
        }
    }
    for (row, pivot) in out.chunks_mut(many).zip(pivots) {
        for x in row {
            *x /= pivot;
        }
    }
    Ok(out)
}
