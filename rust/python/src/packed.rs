//! Packed weights: rows decoded, or multiplied as they lie.

use gradwire_core::frame;
use gradwire_core::packed::{Activations, Output, Packed};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::{Bytes, Indices, Tensor, Writable, disjoint};
use crate::errors::to_py;
use crate::number::number;

/// Multiply packed rows by vectors.
///
/// Parameters
/// ----------
/// frame : bytes-like
///     A dense frame of `Affine`, whose checksum was checked before: here, only lengths are.
/// rows, cols : int
///     The shape of the matrix.
/// x : numpy.ndarray
///     float32, C-contiguous, of shape (m, cols).
/// out : numpy.ndarray
///     float32, C-contiguous, of shape (m, rows): ``out[i, r]`` becomes the sum over c of
///     ``W[r, c] * x[i, c]``, the same bytes on every machine and with any number of threads.
/// activations : str
///     "float32": x is multiplied as it is, by weights as they are decoded, in sixteen sums of
///     float32. "int8": x is rounded to 8 bits, in runs of up to 64 entries within a block of
///     weights; NaN or infinity in ``x[i]`` makes all of ``out[i]`` NaN. Where blocks cross the ends
///     of rows, this is "float32".
///
/// Raises
/// ------
/// ValueError
///     The frame holds no packed weights or another number, or x or out have another length.
/// CorruptFrameError, TruncatedFrameError, UnsupportedFrameError
///     The bytes are no frame.
#[pyfunction]
pub(crate) fn packed_linear(
    frame: &Bound<'_, PyAny>,
    rows: &Bound<'_, PyAny>,
    cols: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    activations: &str,
) -> PyResult<()> {
    let py = frame.py();
    let (rows, cols): (usize, usize) = (number("rows", rows)?, number("cols", cols)?);
    let activations = match activations {
        "float32" => Activations::Float32,
        "int8" => Activations::Int8,
        other => {
            return Err(PyValueError::new_err(format!(
                "activations must be \"float32\" or \"int8\", got {other:?}"
            )));
        }
    };
    let (data, x) = (Bytes::get("frame", frame)?, Tensor::get("x", x, false)?);
    let mut out = Writable::floats("out", out)?;
    disjoint("frame", &out, &data)?;
    disjoint("x", &out, &x)?;
    let (bytes, x, out) = (data.as_slice(), x.floats()?, out.as_mut_slice());
    py.detach(|| {
        let packed = Packed::new(frame::Frame::parse_again(bytes, None)?, rows, cols)?;
        packed.linear(x, activations, out)
    })
    .map_err(|error| to_py(py, error, None))
}

/// Decode some packed rows.
///
/// Parameters
/// ----------
/// frame : bytes-like
///     As in `packed_linear`.
/// cols : int
///     Columns of the matrix.
/// start, count : int
///     Which rows.
/// out : numpy.ndarray
///     C-contiguous, of shape (count, cols): float32, or uint16 to be given bfloat16, rounded to nearest
///     even.
///
/// Raises
/// ------
/// ValueError
///     As in `packed_linear`, or rows that are not there.
/// CorruptFrameError, TruncatedFrameError, UnsupportedFrameError
///     The bytes are no frame.
#[pyfunction]
pub(crate) fn packed_rows(
    frame: &Bound<'_, PyAny>,
    cols: &Bound<'_, PyAny>,
    start: &Bound<'_, PyAny>,
    count: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let cols: usize = number("cols", cols)?;
    let (start, count): (usize, usize) = (number("start", start)?, number("count", count)?);
    write(frame, cols, out, |packed, out| packed.decode(start, count, out))
}

/// Decode packed rows by their numbers.
///
/// Parameters
/// ----------
/// frame, cols
///     As in `packed_rows`.
/// indices : numpy.ndarray
///     int64, of shape (n,).
/// out : numpy.ndarray
///     Of shape (n, cols), as in `packed_rows`.
///
/// Raises
/// ------
/// IndexError
///     An index is negative or not that of a row; nothing is written.
/// ValueError, CorruptFrameError, TruncatedFrameError, UnsupportedFrameError
///     As in `packed_rows`.
#[pyfunction]
pub(crate) fn packed_take(
    frame: &Bound<'_, PyAny>,
    cols: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let cols: usize = number("cols", cols)?;
    let indices = Indices::get("indices", indices)?;
    write(frame, cols, out, |packed, out| packed.take(indices.as_slice(), out))
}

/// Has values written to `out`, with other threads running.
fn write(
    frame: &Bound<'_, PyAny>,
    cols: usize,
    out: &Bound<'_, PyAny>,
    work: impl FnOnce(&Packed<'_>, Output<'_>) -> gradwire_core::Result<()> + Send,
) -> PyResult<()> {
    let (py, data) = (frame.py(), Bytes::get("frame", frame)?);
    let run = |out| {
        py.detach(|| {
            let frame = frame::Frame::parse_again(data.as_slice(), None)?;
            work(&Packed::of_columns(frame, cols)?, out)
        })
        .map_err(|error| to_py(py, error, None))
    };
    if let Some(mut out) = Writable::brains("out", out)? {
        disjoint("frame", &out, &data)?;
        return run(Output::BF16(out.as_mut_slice()));
    }
    let mut out = Writable::floats("out", out)?;
    disjoint("frame", &out, &data)?;
    run(Output::F32(out.as_mut_slice()))
}
