//! MagR: Zhang, Wang, Deng, Li, Yang, Yin, "MagR: Weight Magnitude Reduction for Enhancing Post-Training
//! Quantization", NeurIPS 2024, Algorithm 1: smaller largest weights for nearly the same outputs.
//!
//! Ours: Nesterov's momentum (Beck, Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
//! Inverse Problems", SIAM Journal on Imaging Sciences 2009), which gets further in as many steps, and no
//! sort ([`limit`]).

use std::sync::atomic::AtomicBool;

use super::factor::APART;
use super::gram::{self, go_on};
use crate::buffer::Buffer;
use crate::rng::Key;
use crate::simd::product::{Matrix, MatrixMut};
use crate::simd::{Kernels, LANES, in_standard_mode};
use crate::{Error, Result, allocate, pool};

/// Rows that go through the matrix together: at least some, so that it is not read too often.
const ROWS: [usize; 2] = [128, 384];

/// Columns of the matrix that lie together, row by row: products read them in place.
const STRIP: usize = 64;

/// Columns and depth of a product whose parts stay in the second-level cache.
const WIDE: usize = 512;
const DEPTH: usize = 192;

/// Steps of the power iteration.
const POWERS: usize = 100;

/// How much larger than its estimate, which is not above it, the largest eigenvalue counts.
const MARGIN: f64 = 1.02;

/// Rows of weights, the inputs they are for, and how large they may stay.
#[derive(Debug, Clone, Copy)]
pub struct Magr<'a> {
    weights: &'a [f32],
    gram: &'a [f64],
    cols: usize,
    block: usize,
    alpha: f32,
    steps: u32,
    kernels: &'static Kernels,
    threads: usize,
}

/// Where some rows go.
struct Part<'a> {
    rows: &'a mut [f32],
    outcome: Result<()>,
}

impl<'a> Magr<'a> {
    /// Rows of `cols` weights, the Gram matrix of their inputs, entries of a block, of which a row has a whole
    /// number, what the largest magnitudes cost, and how many steps are made.
    pub fn new(
        weights: &'a [f32],
        (cols, block): (usize, usize),
        gram: &'a [f64],
        alpha: f64,
        steps: u32,
    ) -> Result<Self> {
        gram::check_rows(weights, cols)?;
        if block == 0 || !cols.is_multiple_of(block) {
            return Err(Error::argument(format!(
                "block must divide a row of {cols} weights, got {block}"
            )));
        }
        if !(alpha >= 0.0 && alpha.is_finite()) {
            return Err(Error::argument(format!(
                "alpha must be finite and not negative, got {alpha}"
            )));
        }
        if steps == 0 {
            return Err(Error::argument("steps must be at least 1, got 0"));
        }
        gram::check(gram, cols)?;
        let (kernels, threads) = (Kernels::current(), pool::num_threads());
        Ok(Self { weights, gram, cols, block, alpha: alpha as f32, steps, kernels, threads })
    }

    /// The same, by these kernels instead of [`Kernels::current`], on so many threads.
    #[must_use]
    pub fn with(self, kernels: &'static Kernels, threads: usize) -> Self {
        Self { kernels, threads, ..self }
    }

    /// The rows `w` that have the least `(w - w0) G (w - w0)ᵀ / (2 λ) + alpha * sum of max |w| over blocks`,
    /// nearly: `w0` are the weights, and `λ` is the largest eigenvalue of `G`. `stop` may be set
    /// meanwhile, and then this ends with [`Error::CalledOff`].
    pub fn solve(self, stop: &AtomicBool) -> Result<Vec<f32>> {
        let Self { weights, cols, gram, threads, .. } = self;
        let mut out = allocate::zeros(weights.len())?;
        out.copy_from_slice(weights);
        let mut scaled = Buffer::zeros(cols * cols.next_multiple_of(STRIP))?;
        in_standard_mode(|| {
            let largest = largest_eigenvalue(gram, cols, stop)?;
            if largest > 0.0 {
                let strips = scaled.as_mut_slice().chunks_mut(cols * STRIP);
                for (strip, left) in strips.zip((0..cols).step_by(STRIP)) {
                    for (to, row) in strip.chunks_mut(STRIP).zip(gram.chunks(cols)) {
                        for (to, from) in to.iter_mut().zip(&row[left..]) {
                            *to = (from / largest) as f32;
                        }
                    }
                }
            }
            // Two at least for each thread: what they need besides is then no more than the rows.
            let [least, most] = ROWS;
            let rows = (weights.len() / cols).div_ceil(2 * threads.max(1)).clamp(least, most);
            let parts = out.chunks_mut(rows * cols).map(|rows| Part { rows, outcome: Ok(()) });
            let (mut parts, count) =
                (parts.collect::<Vec<_>>(), weights.len().div_ceil(rows * cols));
            pool::share(threads, count, 1, &mut parts, &|numbers, parts| {
                for (number, part) in numbers.zip(parts) {
                    let before = &weights[number * rows * cols..][..part.rows.len()];
                    part.outcome = self.descend(scaled.as_slice(), before, part.rows, stop);
                }
            });
            parts.into_iter().try_for_each(|part| part.outcome)
        })?;
        Ok(out)
    }

    fn descend(
        &self,
        gram: &[f32],
        before: &[f32],
        rows: &mut [f32],
        stop: &AtomicBool,
    ) -> Result<()> {
        let (cols, many, stride) = (self.cols, rows.len() / self.cols, self.cols + APART);
        // Where the next step begins, and how far that is from the weights.
        let (mut ahead, mut back) = (Buffer::zeros(many * stride)?, Buffer::zeros(many * stride)?);
        let (ahead, back) = (ahead.as_mut_slice(), back.as_mut_slice());
        for (ahead, row) in ahead.chunks_mut(stride).zip(rows.chunks(cols)) {
            ahead[..cols].copy_from_slice(row);
        }
        let mut limits = allocate::zeros(rows.len() / self.block)?;
        let mut momentum = 1.0;
        for _ in 0..self.steps {
            self.move_back(gram, back, ahead, stop)?;
            let next = 0.5 + 0.5 * libm::sqrt(1.0 + 4.0 * momentum * momentum);
            let carry = ((momentum - 1.0) / next) as f32;
            momentum = next;
            let moved = ahead.chunks_mut(stride).zip(back.chunks_mut(stride));
            let both = rows.chunks_mut(cols).zip(before.chunks(cols)).zip(moved);
            for (((row, before), (ahead, back)), limits) in
                both.zip(limits.chunks_mut(cols / self.block))
            {
                self.end_step(carry, [ahead, back], before, row, limits);
            }
        }
        Ok(())
    }

    /// `ahead += back * gram`.
    fn move_back(
        &self,
        gram: &[f32],
        back: &[f32],
        ahead: &mut [f32],
        stop: &AtomicBool,
    ) -> Result<()> {
        let (cols, stride) = (self.cols, self.cols + APART);
        for left in (0..cols).step_by(WIDE) {
            go_on(stop)?;
            for row in (0..cols).step_by(DEPTH) {
                for column in (left..cols.min(left + WIDE)).step_by(STRIP) {
                    self.kernels.add_product(
                        MatrixMut { values: &mut ahead[column..], stride },
                        Matrix { values: &back[row..], stride },
                        Matrix { values: &gram[column * cols + row * STRIP..], stride: STRIP },
                        [back.len() / stride, DEPTH.min(cols - row), STRIP.min(cols - column)],
                    );
                }
            }
        }
        Ok(())
    }

    /// Cuts the blocks of a row that has moved, and goes on beyond it.
    fn end_step(
        &self,
        carry: f32,
        [ahead, back]: [&mut [f32]; 2],
        before: &[f32],
        row: &mut [f32],
        limits: &mut [f32],
    ) {
        let blocks = row.chunks_mut(self.block).zip(before.chunks(self.block)).zip(limits);
        let moved = ahead.chunks_mut(self.block).zip(back.chunks_mut(self.block));
        for (((row, before), last), (ahead, back)) in blocks.zip(moved) {
            let limit = limit(ahead, self.alpha, *last);
            *last = limit;
            for (((row, before), ahead), back) in row.iter_mut().zip(before).zip(ahead).zip(back) {
                let new = ahead.max(-limit).min(limit);
                *ahead = new + carry * (new - *row);
                *back = before - *ahead;
                *row = new;
            }
        }
    }
}

/// Where magnitudes end so that `values` have the least `half their squared change + alpha * the largest magnitude`:
/// what is beyond is `alpha` in sum. From a guess, from below after that, without a sort (Michelot, "A Finite
/// Algorithm for Finding the Projection of a Point onto the Canonical Simplex of ℝⁿ", Journal of Optimization
/// Theory and Applications 1986).
fn limit(values: &[f32], alpha: f32, guess: f32) -> f32 {
    let alpha = f64::from(alpha);
    let (mut sum, mut count) = beyond(values, guess);
    if count == 0 {
        (sum, count) = beyond(values, 0.0);
    }
    let mut is_below = false;
    loop {
        // What exceeds in sum is convex: its tangents end below where it is `alpha`.
        let limit = ((sum - alpha) / f64::from(count)).max(0.0) as f32;
        let before = count;
        (sum, count) = beyond(values, limit);
        // From below there are always fewer, but for rounding: it could go back and forth between two sets.
        let is_last = if is_below { count >= before } else { count == before };
        if is_last || count == 0 || (limit == 0.0 && sum <= alpha) {
            return limit;
        }
        is_below = true;
    }
}

/// The sum and the number of the magnitudes above a limit.
fn beyond(values: &[f32], limit: f32) -> (f64, u32) {
    let (mut sums, mut counts) = ([0.0; LANES], [0; LANES]);
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut last = [0.0; LANES]; // Not above any limit.
    last[..rest.len()].copy_from_slice(rest);
    for values in whole.iter().chain([&last]) {
        for i in 0..LANES {
            let magnitude = values[i].abs();
            let is_above = magnitude > limit;
            sums[i] += if is_above { magnitude } else { 0.0 };
            counts[i] += u32::from(is_above);
        }
    }
    (sums.map(f64::from).iter().sum(), counts.iter().sum())
}

/// The largest eigenvalue of a Gram matrix, from some per cent below to [`MARGIN`] above: power iteration
/// from numbers that are like no eigenvector.
fn largest_eigenvalue(gram: &[f64], cols: usize, stop: &AtomicBool) -> Result<f64> {
    let (mut from, mut to) = (allocate::zeros::<f64>(cols)?, allocate::zeros::<f64>(cols)?);
    for (i, x) in from.iter_mut().enumerate() {
        *x = libm::sqrt(gram[i * cols + i]) * f64::from(Key::from_bits(1).unit(i as u32));
    }
    let norm = |x: &[f64]| libm::sqrt(x.iter().map(|x| x * x).sum());
    let (mut before, mut largest) = (norm(&from), 0.0);
    for _ in 0..POWERS {
        go_on(stop)?;
        if before == 0.0 {
            break;
        }
        to.fill(0.0);
        for (row, x) in gram.chunks(cols).zip(&from) {
            let x = x / before;
            for (to, entry) in to.iter_mut().zip(row) {
                *to += x * entry;
            }
        }
        largest = norm(&to);
        before = largest;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(MARGIN * largest)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{error, gram, weights};
    use super::*;
    use crate::reference::solve as naive;
    use crate::simd::available_levels;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn doubles(x: &[f32]) -> Vec<f64> {
        x.iter().map(|&x| f64::from(x)).collect()
    }

    fn solve(weights: &[f32], shape: (usize, usize), gram: &[f64], alpha: f64, n: u32) -> Vec<f32> {
        Magr::new(weights, shape, gram, alpha, n).unwrap().solve(&GO_ON).unwrap()
    }

    fn scaled(gram: &[f64], cols: usize) -> Vec<f64> {
        let largest = largest_eigenvalue(gram, cols, &GO_ON).unwrap();
        gram.iter().map(|x| x / largest).collect()
    }

    #[test]
    fn the_limit_is_that_of_sorted_magnitudes() {
        for len in [1, 2, 15, 16, 17, 64, 300] {
            for (i, alpha) in [0.0, 1e-4, 0.3, 5.0, 1e3].into_iter().enumerate() {
                let mut values = weights(i + 1, len)[i * len..].to_vec();
                values[len / 2] = values[0];
                let expected = naive::limit(&doubles(&values), f64::from(alpha));
                for guess in [0.0, 0.5 * expected, 1.5 * expected, 100.0] {
                    let found = f64::from(limit(&values, alpha, guess as f32));
                    assert!(
                        (found - expected).abs() <= 1e-6 * expected,
                        "{len} {alpha} {guess} {found}"
                    );
                }
            }
        }
        assert_eq!(limit(&[0.0; 5], 0.0, 0.0), 0.0);
        assert_eq!(limit(&[2.0; 40], 4.0, 1.0), 1.9);
    }

    /// With one beyond it, the limit is rounded to the second; with two, to more than that.
    #[test]
    fn a_limit_is_found_where_rounding_decides_what_is_beyond() {
        let found = limit(&[0.034_417_238, -0.034_317_24, 0.02], 1e-4, 0.0);
        assert!((found - 0.034_317_24).abs() < 1e-8);
    }

    /// A minimum is what a step leaves where it is.
    #[test]
    fn many_steps_end_at_a_minimum() {
        for (cols, block, alpha) in [(24, 24, 0.05), (32, 8, 0.01), (40, 20, 1.0)] {
            let (gram, before) = (gram(cols), weights(5, cols));
            let found = solve(&before, (cols, block), &gram, alpha, 5000);
            let matrix = scaled(&gram, cols);
            for (found, before) in found.chunks(cols).zip(before.chunks(cols)) {
                let [found, before] = [found, before].map(doubles);
                let moved = naive::magr_step(&before, &found, (&matrix, block), alpha);
                let left = found.iter().zip(&moved).map(|(a, b)| (a - b).abs());
                assert!(left.fold(0.0, f64::max) <= 1e-6, "{cols} {block}");
            }
        }
    }

    #[test]
    fn neither_the_level_nor_the_threads_change_anything() {
        let (rows, cols) = (2 * ROWS[0] + 9, 200);
        let (gram, before) = (gram(cols), weights(rows, cols));
        let magr = Magr::new(&before, (cols, 20), &gram, 1e-2, 7).unwrap();
        let expected = magr.with(Kernels::current(), 1).solve(&GO_ON).unwrap();
        for level in available_levels() {
            for threads in [1, 3] {
                let magr = magr.with(Kernels::of(level).unwrap(), threads);
                assert_eq!(magr.solve(&GO_ON).unwrap(), expected, "{level:?} {threads}");
            }
        }
    }

    /// Equal inputs of opposite signs: their eigenvector is far from one of equal numbers.
    #[test]
    fn a_step_is_safe_whatever_inputs_have_in_common() {
        let largest = largest_eigenvalue(&[1.0, -0.9, -0.9, 1.0], 2, &GO_ON).unwrap();
        assert!((1.9..=1.9 * MARGIN * 1.001).contains(&largest), "{largest}");
        assert_eq!(solve(&[1.0, -3.0], (2, 2), &[0.0; 4], 0.0, 9), [1.0, -3.0]);
    }

    #[test]
    fn what_cannot_be_solved_is_refused() {
        let (gram, weights) = (gram(8), weights(2, 8));
        let new = |shape, alpha, steps| error(Magr::new(&weights, shape, &gram, alpha, steps));
        assert!(new((8, 3), 0.1, 1).contains("block must divide a row of 8"));
        assert!(new((8, 0), 0.1, 1).contains("block must divide a row of 8"));
        assert!(new((7, 7), 0.1, 1).contains("no rows of 7"));
        assert!(new((4, 4), 0.1, 1).contains("give 4 rows"));
        assert!(new((8, 8), -0.1, 1).contains("alpha must be"));
        assert!(new((8, 8), f64::NAN, 1).contains("alpha must be"));
        assert!(new((8, 8), 0.1, 0).contains("steps must be"));
        let magr = Magr::new(&weights, (8, 8), &gram, 0.1, 1).unwrap();
        assert_eq!(magr.solve(&AtomicBool::new(true)), Err(Error::CalledOff));
    }
}
