//! A layer, and codes to the nearest.

use std::sync::atomic::AtomicBool;

use super::error::row_squares;
use super::gram;
use super::strip::{GROUP, Strip};
use crate::quantize::{Affine, AffineFit, Quantize, Quantizer, Rounding};
use crate::simd::cells::Cells;
use crate::simd::columns::STRIP;
use crate::simd::{Kernels, in_standard_mode};
use crate::{Error, Result, allocate, pool};

/// The weights of a layer, what its inputs are, and the grid that codes are to lie on.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    pub(super) weights: &'a [f32],
    pub(super) gram: &'a [f64],
    pub(super) cols: usize,
    pub(super) block: usize,
    pub(super) affine: Affine,
    /// What is added to the diagonal.
    pub(super) added: f64,
    /// How weights are brought to float16.
    pub(super) coding: <Affine as Quantize>::Coding,
    pub(super) cells: Cells,
    pub(super) kernels: &'static Kernels,
    pub(super) threads: usize,
}

/// Codes, a byte each, and the step and the base of each block of each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// Row by row.
    pub codes: Vec<u8>,
    /// Numbers of float16 times the power of two of the frame.
    pub steps: Vec<f32>,
    /// The same.
    pub bases: Vec<f32>,
}

impl Solved {
    /// `(q - w) G (q - w)ᵀ` of each row, without damping.
    pub(super) fn losses(&self, layer: &Layer<'_>, stop: &AtomicBool) -> Result<Vec<f64>> {
        let (weights, block) = (layer.weights, layer.block);
        let entry = |i: usize| {
            let value = self.bases[i / block] + self.steps[i / block] * f32::from(self.codes[i]);
            f64::from(value) - f64::from(weights[i])
        };
        let (count, how) = (weights.len() / layer.cols, (layer.kernels, layer.threads));
        row_squares(count, &entry, (layer.gram, layer.cols), how, stop)
    }

    /// Takes the rows of another solution that lose less. `losses` are those of this one.
    pub(super) fn improve(
        &mut self,
        losses: &mut [f64],
        other: &Self,
        layer: &Layer<'_>,
        stop: &AtomicBool,
    ) -> Result<()> {
        let (cols, wide) = (layer.cols, layer.cols / layer.block);
        for (row, (loss, less)) in losses.iter_mut().zip(other.losses(layer, stop)?).enumerate() {
            if less < *loss {
                *loss = less;
                self.codes[row * cols..][..cols]
                    .copy_from_slice(&other.codes[row * cols..][..cols]);
                self.steps[row * wide..][..wide]
                    .copy_from_slice(&other.steps[row * wide..][..wide]);
                self.bases[row * wide..][..wide]
                    .copy_from_slice(&other.bases[row * wide..][..wide]);
            }
        }
        Ok(())
    }
}

/// Where some rows are solved to.
struct Part<'a> {
    codes: &'a mut [u8],
    steps: &'a mut [f32],
    bases: &'a mut [f32],
    outcome: Result<()>,
}

impl<'a> Layer<'a> {
    /// A layer of rows of `cols` weights, the Gram matrix of its inputs, an [`Affine`] with blocks that
    /// divide a row, and what is added to the diagonal, relative to its mean.
    pub fn new(
        weights: &'a [f32],
        cols: usize,
        gram: &'a [f64],
        quantizer: Quantizer,
        damp: f64,
    ) -> Result<Self> {
        let Quantizer::Affine(affine) = quantizer else {
            return Err(Error::argument("give the Affine that weights are packed with"));
        };
        if affine.rounding == Rounding::Stochastic {
            return Err(Error::argument("a solver chooses codes: give rounding=\"nearest\""));
        }
        gram::check_rows(weights, cols)?;
        let block = match affine.block.map(|block| block as usize) {
            Some(block) if cols.is_multiple_of(block) => block,
            block => {
                let got = block.map_or_else(|| "None".to_owned(), |block| block.to_string());
                return Err(Error::argument(format!(
                    "block must divide a row of {cols} weights, got {got}: give a block of at most a row"
                )));
            }
        };
        if !(damp >= 0.0 && damp.is_finite()) {
            return Err(Error::argument(format!(
                "damp must be finite and not negative, got {damp}"
            )));
        }
        gram::check(gram, cols)?;
        let kernels = Kernels::current();
        // Least squares on weights are a worse start than their range: see COMQ.
        let fit = match affine.fit {
            AffineFit::Squares => AffineFit::Range,
            fit => fit,
        };
        let peak = weights.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
        let coding = affine.coding(weights.len() as u64, peak);
        let mean = (0..cols).map(|i| gram[i * cols + i] / cols as f64).sum::<f64>();
        Ok(Self {
            weights,
            gram,
            cols,
            block,
            affine: Affine { fit, ..affine },
            added: damp * mean,
            coding,
            cells: Cells::new(affine.bits, 1.0),
            kernels,
            threads: pool::num_threads(),
        })
    }

    /// The same, by these kernels instead of [`Kernels::current`], on so many threads.
    #[must_use]
    pub fn with(self, kernels: &'static Kernels, threads: usize) -> Self {
        Self { kernels, threads, ..self }
    }

    /// Whether an input is always zero: its weights are rounded to the nearest, and have no part in anything.
    pub(super) fn is_dead(&self, column: usize) -> bool {
        self.gram[column * self.cols + column] == 0.0
    }

    /// An entry of the objective's matrix.
    pub(super) fn entry(&self, row: usize, column: usize) -> f64 {
        let added = if row == column { self.added } else { 0.0 };
        self.gram[row * self.cols + column] + added
    }

    /// Solves groups of strips, on all threads.
    pub(super) fn solve(
        &self,
        stop: &AtomicBool,
        work: impl Fn(&mut [Strip]) -> Result<()> + Sync,
    ) -> Result<Solved> {
        let blocks = self.weights.len() / self.block;
        let mut solved = Solved {
            codes: allocate::zeros(self.weights.len())?,
            steps: allocate::zeros(blocks)?,
            bases: allocate::zeros(blocks)?,
        };
        // Fewer strips where threads would have none.
        let strips = (self.weights.len() / self.cols).div_ceil(STRIP);
        let group = strips.div_ceil(self.threads.max(1)).clamp(1, GROUP);
        let (rows, wide) = (group * STRIP, self.cols / self.block);
        let grids = solved.steps.chunks_mut(rows * wide).zip(solved.bases.chunks_mut(rows * wide));
        let codes = solved.codes.chunks_mut(rows * self.cols);
        let mut parts: Vec<_> = codes
            .zip(grids)
            .map(|(codes, (steps, bases))| Part { codes, steps, bases, outcome: Ok(()) })
            .collect();
        in_standard_mode(|| {
            let (threads, count) = (self.threads, parts.len());
            pool::share(threads, count, 1, &mut parts, &|numbers, parts| {
                for (number, part) in numbers.zip(parts) {
                    part.outcome = gram::go_on(stop).and_then(|()| {
                        self.solve_part(&self.weights[number * rows * self.cols..], part, &work)
                    });
                }
            });
        });
        parts.into_iter().try_for_each(|part| part.outcome)?;
        Ok(solved)
    }

    fn solve_part(
        &self,
        weights: &[f32],
        part: &mut Part<'_>,
        work: &(impl Fn(&mut [Strip]) -> Result<()> + Sync),
    ) -> Result<()> {
        let (len, wide) = (STRIP * self.cols, STRIP * self.cols / self.block);
        let weights = weights[..part.codes.len()].chunks(len);
        let mut strips = weights.map(|rows| Strip::new(self, rows)).collect::<Result<Vec<_>>>()?;
        work(&mut strips)?;
        let grids = part.steps.chunks_mut(wide).zip(part.bases.chunks_mut(wide));
        for ((strip, codes), (steps, bases)) in
            strips.iter().zip(part.codes.chunks_mut(len)).zip(grids)
        {
            strip.write(self, codes, steps, bases);
        }
        Ok(())
    }
}
