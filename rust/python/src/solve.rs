//! Codes of packed weights by what a layer's inputs say, and what they lose.
//!
//! The work runs on another thread, while this one looks for signals: Ctrl-C ends it soon, and nothing has
//! changed by then.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gradwire_core::solve::{Comq, Layer, Magr, Solved, Start, comq, errors, gptq};
use gradwire_core::{Input, Result};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::{Tensor, to_numpy};
use crate::config;
use crate::errors::to_py;
use crate::number::number;

/// How long signals wait to be seen.
const PATIENCE: Duration = Duration::from_millis(50);

/// Codes, steps and bases as arrays.
type Arrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Chooses codes by GPTQ.
///
/// Columns are rounded in turn, those of the largest inputs first, each moved by what those before it leave
/// (Frantar et al., 2022, Algorithm 1). Grids are those of the weights; `fit="squares"` counts as "range".
///
/// `weights` are float32, C-contiguous, of shape (rows, cols); `gram` is float64, C-contiguous, of shape
/// (cols, cols): the products of all pairs of inputs, summed, to whose diagonal `damp` times its mean is added.
/// `config` has the options of an `Affine` whose blocks divide a row. Returns codes, uint8 of shape (rows,
/// cols), and steps and bases, float32 of shape (rows, cols / block): numbers of float16 times the power of two
/// that a frame of these weights has. The same on every machine and with any number of threads.
///
/// A ValueError where shapes or blocks do not fit, `damp` is negative, or `gram` is not finite, not symmetric,
/// has a negative diagonal, or is singular with that `damp`; a NonFiniteError for weights that are not finite.
#[pyfunction]
pub(crate) fn solve_gptq<'py>(
    weights: &Bound<'py, PyAny>,
    gram: &Bound<'_, PyAny>,
    config: &Bound<'_, PyDict>,
    damp: &Bound<'_, PyAny>,
) -> PyResult<Arrays<'py>> {
    solve(weights, gram, config, damp, gptq)
}

/// Chooses codes, steps and bases by coordinate descent, of what `solve_gptq` takes and as it returns them.
///
/// COMQ (Zhang, Yang, Wang, Qi, Xin, Li, Yin, 2025), with the step and the base of a block at their exact minimum
/// together. All codes are gone through `sweeps` times, at least once, from `start` "gptq": its codes or the
/// nearest, whichever are better for a row; or "nearest". Without `bases`, steps alone move, around the centre of
/// the grid, as in the paper. No row has a larger error than at its start.
#[pyfunction]
pub(crate) fn solve_comq<'py>(
    weights: &Bound<'py, PyAny>,
    gram: &Bound<'_, PyAny>,
    config: &Bound<'_, PyDict>,
    damp: &Bound<'_, PyAny>,
    sweeps: &Bound<'_, PyAny>,
    start: &str,
    bases: bool,
) -> PyResult<Arrays<'py>> {
    let start = match start {
        "gptq" => Start::Gptq,
        "nearest" => Start::Nearest,
        other => {
            return Err(PyValueError::new_err(format!(
                "start must be \"gptq\" or \"nearest\", got {other:?}"
            )));
        }
    };
    let options = Comq { sweeps: number("sweeps", sweeps)?, start, bases };
    solve(weights, gram, config, damp, |layer, stop| comq(layer, options, stop))
}

/// Makes the largest weights smaller, for nearly the same outputs.
///
/// MagR (Zhang, Wang, Deng, Li, Yang, Yin, 2024, Algorithm 1) with momentum: by row, half the squared error of
/// its outputs over the largest eigenvalue of `gram`, and `alpha` times the sum of the largest magnitudes of its
/// blocks, are made small together, in `steps` moves of all weights. `weights` and `gram` are as in `solve_gptq`;
/// a row has a whole number of blocks of `block` weights. The same on every machine and with any number of
/// threads.
#[pyfunction]
pub(crate) fn solve_magr<'py>(
    weights: &Bound<'py, PyAny>,
    gram: &Bound<'_, PyAny>,
    block: &Bound<'_, PyAny>,
    alpha: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, [rows, cols]) = (weights.py(), shape(weights)?);
    let (block, steps) = (number("block", block)?, number("steps", steps)?);
    let alpha: f64 = number("alpha", alpha)?;
    let (weights, gram) =
        (Tensor::get("weights", weights, false)?, Tensor::get("gram", gram, false)?);
    let (weights, gram) = (weights.floats()?, doubles("gram", &gram)?);
    let smaller = interruptible(py, |stop| {
        Magr::new(weights, (cols, block), gram, alpha, steps)?.solve(stop)
    })?;
    to_numpy(py, "float32", &smaller)?.call_method1("reshape", ((rows, cols),))
}

/// What outputs lose where other weights, `decoded`, are in place of a layer's: the squared errors of the outputs
/// and the squares of what they were, over all inputs that `gram` is of. With `e = decoded - weights` these are
/// the sums of `e @ gram * e` and of `weights @ gram * weights`, in float64. The same with any number of threads.
#[pyfunction]
pub(crate) fn gram_errors(
    weights: &Bound<'_, PyAny>,
    decoded: &Bound<'_, PyAny>,
    gram: &Bound<'_, PyAny>,
) -> PyResult<(f64, f64)> {
    let (py, [_, cols]) = (weights.py(), shape(weights)?);
    let [weights, decoded] = [("weights", weights), ("decoded", decoded)]
        .map(|(name, array)| Tensor::get(name, array, false));
    let (weights, decoded, gram) = (weights?, decoded?, Tensor::get("gram", gram, false)?);
    let (weights, decoded) = (weights.floats()?, decoded.floats()?);
    let gram = doubles("gram", &gram)?;
    let [lost, norm] = interruptible(py, |stop| errors(weights, decoded, cols, gram, stop))?;
    Ok((lost, norm))
}

/// Rows and columns.
fn shape(weights: &Bound<'_, PyAny>) -> PyResult<[usize; 2]> {
    let shape: Vec<usize> = weights.getattr("shape")?.extract()?;
    shape.as_slice().try_into().map_err(|_| {
        PyValueError::new_err(format!("weights must be rows and columns, got shape {shape:?}"))
    })
}

fn solve<'py>(
    weights: &Bound<'py, PyAny>,
    gram: &Bound<'_, PyAny>,
    config: &Bound<'_, PyDict>,
    damp: &Bound<'_, PyAny>,
    work: impl FnOnce(&Layer<'_>, &AtomicBool) -> Result<Solved> + Send,
) -> PyResult<Arrays<'py>> {
    let (py, [rows, cols]) = (weights.py(), shape(weights)?);
    let damp: f64 = number("damp", damp)?;
    let (weights, gram) =
        (Tensor::get("weights", weights, false)?, Tensor::get("gram", gram, false)?);
    let (weights, gram) = (weights.floats()?, doubles("gram", &gram)?);
    let quantizer = config::quantizer(config)?;
    let Solved { codes, steps, bases } = interruptible(py, |stop| {
        let layer = Layer::new(weights, cols, gram, quantizer, damp)?;
        work(&layer, stop)
    })?;
    let shape = (rows, steps.len() / rows.max(1));
    Ok((
        to_numpy(py, "uint8", &codes)?.call_method1("reshape", ((rows, cols),))?,
        to_numpy(py, "float32", &steps)?.call_method1("reshape", (shape,))?,
        to_numpy(py, "float32", &bases)?.call_method1("reshape", (shape,))?,
    ))
}

/// The elements, if they are float64.
pub(crate) fn doubles<'a>(name: &str, tensor: &'a Tensor) -> PyResult<&'a [f64]> {
    match tensor.input() {
        Input::F64(values) => Ok(values),
        _ => Err(PyTypeError::new_err(format!("{name} must be a numpy array of float64"))),
    }
}

/// Runs work on another thread, and tells it to stop where a signal's handler raises.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T> + Send,
) -> PyResult<T> {
    let (stop, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (stop, is_done, caller) = (&stop, &is_done, thread::current());
    let outcome = thread::scope(|scope| {
        let worker = thread::Builder::new().name("gradwire-solve".to_owned());
        let worker = worker.spawn_scoped(scope, move || {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| work(stop)));
            is_done.store(true, Ordering::Release);
            caller.unpark();
            outcome
        })?;
        let mut raised = None;
        while !is_done.load(Ordering::Acquire) {
            py.detach(|| thread::park_timeout(PATIENCE));
            if raised.is_none()
                && let Err(error) = py.check_signals()
            {
                stop.store(true, Ordering::Relaxed);
                raised = Some(error);
            }
        }
        let outcome = worker.join().and_then(|outcome| outcome);
        match (raised, outcome) {
            (Some(error), _) => Err(error),
            (None, Ok(outcome)) => Ok(outcome),
            (None, Err(panicked)) => panic::resume_unwind(panicked),
        }
    })?;
    outcome.map_err(|error| to_py(py, error, None))
}
