//! What a layer's outputs lose.

use std::sync::atomic::AtomicBool;

use super::factor::APART;
use super::gram::{self, go_on};
use crate::simd::product::{Matrix, MatrixMut};
use crate::simd::{Kernels, in_standard_mode};
use crate::{Error, Result, allocate, pool};

/// Rows that go through the matrix together, at most.
const ROWS: usize = 256;

/// Columns that are multiplied together.
const WIDE: usize = 256;

/// The squared errors of outputs where `decoded` are in place of the weights, and the squares of what they
/// were: the sums of `(q - w) G (q - w)ᵀ` and of `w G wᵀ` over all rows, in float64. `stop` may be set meanwhile,
/// and then this ends with [`Error::CalledOff`].
pub fn errors(
    weights: &[f32],
    decoded: &[f32],
    cols: usize,
    gram: &[f64],
    stop: &AtomicBool,
) -> Result<[f64; 2]> {
    gram::check_rows(weights, cols)?;
    if weights.len() != decoded.len() {
        let (have, expected) = (decoded.len(), weights.len());
        return Err(Error::argument(format!("{have} decoded weights for {expected} weights")));
    }
    gram::check_rows(decoded, cols)?;
    gram::check(gram, cols)?;
    sums((weights, decoded), (gram, cols), (Kernels::current(), pool::num_threads()), stop)
}

/// The same of what was checked.
fn sums(
    (weights, decoded): (&[f32], &[f32]),
    matrix: (&[f64], usize),
    how: (&'static Kernels, usize),
    stop: &AtomicBool,
) -> Result<[f64; 2]> {
    let count = weights.len() / matrix.1;
    let errors = |i: usize| f64::from(decoded[i]) - f64::from(weights[i]);
    let lost = row_squares(count, &errors, matrix, how, stop)?;
    let norms = row_squares(count, &|i| f64::from(weights[i]), matrix, how, stop)?;
    Ok([lost, norms].map(|rows| rows.iter().sum()))
}

/// `x G xᵀ` of each of `count` rows `x`, in float64: `entry(i)` is entry `i` of all rows, one after another.
pub(super) fn row_squares(
    count: usize,
    entry: &(impl Fn(usize) -> f64 + Sync),
    (gram, cols): (&[f64], usize),
    (kernels, threads): (&'static Kernels, usize),
    stop: &AtomicBool,
) -> Result<Vec<f64>> {
    let (rows, stride) = (count.div_ceil(threads.max(1)).clamp(1, ROWS), cols + APART);
    let mut squares_of_rows = allocate::zeros(count)?;
    let mut parts: Vec<_> = squares_of_rows.chunks_mut(rows).map(|sums| (sums, Ok(()))).collect();
    let work = |number: usize, sums: &mut [f64]| {
        let mut padded = allocate::zeros(sums.len() * stride)?;
        let mut product = allocate::zeros(sums.len() * WIDE)?;
        for (i, row) in padded.chunks_mut(stride).enumerate() {
            let first = (number * rows + i) * cols;
            for (column, x) in row[..cols].iter_mut().enumerate() {
                *x = entry(first + column);
            }
        }
        let mut add = |row: usize, sum: f64| sums[row] += sum;
        squares(&padded, (gram, cols), kernels, &mut product, stop, &mut add)
    };
    in_standard_mode(|| {
        let many = parts.len();
        pool::share(threads, many, 1, &mut parts, &|numbers, parts| {
            for (number, (sums, outcome)) in numbers.zip(parts) {
                *outcome = work(number, sums);
            }
        });
    });
    parts.into_iter().try_for_each(|(_, outcome)| outcome)?;
    Ok(squares_of_rows)
}

/// Gives `add` the parts of `x G xᵀ` of each row. What is above the diagonal counts twice, and is all that is
/// read beside it.
fn squares(
    rows: &[f64],
    (gram, cols): (&[f64], usize),
    kernels: &Kernels,
    product: &mut [f64],
    stop: &AtomicBool,
    add: &mut impl FnMut(usize, f64),
) -> Result<()> {
    let stride = cols + APART;
    for left in (0..cols).step_by(WIDE) {
        let width = WIDE.min(cols - left);
        for (first, depth, factor) in [(0, left, 2.0), (left, width, 1.0)] {
            go_on(stop)?;
            product.fill(0.0);
            kernels.add_product_f64(
                MatrixMut { values: &mut *product, stride: WIDE },
                Matrix { values: &rows[first..], stride },
                Matrix { values: &gram[first * cols + left..], stride: cols },
                [rows.len() / stride, depth, width],
            );
            for (i, (row, product)) in rows.chunks(stride).zip(product.chunks(WIDE)).enumerate() {
                let pairs = row[left..left + width].iter().zip(product);
                add(i, factor * pairs.map(|(x, product)| x * product).sum::<f64>());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{error, gram, weights};
    use super::*;
    use crate::reference::solve as naive;
    use crate::simd::available_levels;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn sums_are_those_of_every_row_however_small_errors_are() {
        for (rows, cols) in [(1, 1), (3, 40), (ROWS + 5, WIDE + 3)] {
            let (gram, weights) = (gram(cols), weights(rows, cols));
            for share in [0.0, 1e-6, 0.1] {
                let change = |(i, w): (usize, &f32)| w * (1.0 + share * ((i % 3) as f32 - 1.0));
                let decoded: Vec<f32> = weights.iter().enumerate().map(change).collect();
                let mut expected = [0.0; 2];
                for (w, q) in weights.chunks(cols).zip(decoded.chunks(cols)) {
                    let [w, q] =
                        [w, q].map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
                    expected[0] += naive::objective(&w, &q, &gram);
                    expected[1] += naive::objective(&w, &vec![0.0; cols], &gram);
                }
                let found = errors(&weights, &decoded, cols, &gram, &GO_ON).unwrap();
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= 1e-9 * expected, "{rows} {cols} {share}");
                }
                for level in available_levels() {
                    let kernels = Kernels::of(level).unwrap();
                    for threads in [1, 3] {
                        let how = (kernels, threads);
                        let again = sums((&weights, &decoded), (&gram, cols), how, &GO_ON);
                        assert_eq!(again.unwrap(), found, "{level:?} {threads}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_layer_is_refused() {
        let (gram, weights) = (gram(4), weights(2, 4));
        let of = |decoded: &[f32], cols| errors(&weights, decoded, cols, &gram, &GO_ON);
        assert!(error(of(&weights[1..], 4)).contains("7 decoded weights for 8"));
        assert!(error(of(&weights, 3)).contains("no rows of 3"));
        assert!(error(of(&weights, 2)).contains("give 2 rows"));
        assert!(matches!(of(&[f32::NAN; 8], 4), Err(Error::NonFinite { count: 8, first: 0 })));
        let stop = AtomicBool::new(true);
        let stopped = errors(&weights, &weights, 4, &gram, &stop);
        assert_eq!(stopped, Err(Error::CalledOff));
    }
}
