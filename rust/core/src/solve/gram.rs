//! What weights and a Gram matrix must be.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// How far two entries may be apart, relative to the norms of both inputs.
const APART: f64 = 1e-6;

/// Rows and columns that are compared together, so that both stay in a cache.
const TILE: usize = 64;

/// Fails unless this is a matrix of `cols` rows and columns that is finite and symmetric, with no negative
/// number on its diagonal.
pub fn check(gram: &[f64], cols: usize) -> Result<()> {
    if cols.checked_mul(cols) != Some(gram.len()) {
        return Err(Error::argument(format!(
            "gram has {} entries: give {cols} rows and columns, as many as a row has weights",
            gram.len()
        )));
    }
    if let Some(at) = gram.iter().position(|x| !x.is_finite()) {
        let (i, j) = (at / cols, at % cols);
        return Err(Error::argument(format!("gram[{i}, {j}] is {}, not finite", gram[at])));
    }
    let diagonal = |i: usize| gram[i * cols + i];
    if let Some(i) = (0..cols).find(|&i| diagonal(i) < 0.0) {
        return Err(Error::argument(format!(
            "gram[{i}, {i}] is {}: a Gram matrix has no negative number on its diagonal",
            diagonal(i)
        )));
    }
    let norms: Vec<f64> = (0..cols).map(|i| libm::sqrt(diagonal(i))).collect();
    for top in (0..cols).step_by(TILE) {
        for left in (0..=top).step_by(TILE) {
            for i in top..cols.min(top + TILE) {
                for j in left..i.min(left + TILE) {
                    let [one, other] = [gram[i * cols + j], gram[j * cols + i]];
                    if (one - other).abs() > APART * norms[i] * norms[j] {
                        return Err(Error::argument(format!(
                            "gram is not symmetric: [{i}, {j}] is {one}, [{j}, {i}] is {other}"
                        )));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Fails unless these are whole rows of finite numbers.
pub(super) fn check_rows(weights: &[f32], cols: usize) -> Result<()> {
    if cols == 0 || !weights.len().is_multiple_of(cols) {
        return Err(Error::argument(format!("{} weights are no rows of {cols}", weights.len())));
    }
    let is_finite = |x: &f32| x.is_finite();
    if let Some(first) = weights.iter().position(|x| !is_finite(x)) {
        let count = weights.iter().filter(|x| !is_finite(x)).count();
        return Err(Error::NonFinite { count: count as u64, first: first as u64 });
    }
    Ok(())
}

/// Fails where the caller wants to stop.
pub(super) fn go_on(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::CalledOff) } else { Ok(()) }
}
