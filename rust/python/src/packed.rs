//! Packed weights: rows decoded, or multiplied as they lie.

use gradwire_core::frame;
use gradwire_core::packed::{Activations, Chosen, Output, Packed};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer::{Bytes, Indices, Tensor, Writable, disjoint};
use crate::config;
use crate::errors::to_py;
use crate::number::number;

/// The number of entries of a packed tensor, whose frame is checked: bytes from anywhere. An error if they
/// are no dense frame of `Affine`, or if a step or a base is NaN, infinite or negative.
#[pyfunction]
pub(crate) fn packed_check(frame: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (py, data) = (frame.py(), Bytes::get("frame", frame)?);
    py.detach(|| Ok(Packed::parse(data.as_slice())?.numel()))
        .map_err(|error| to_py(py, error, None))
}

/// Multiplies packed rows by vectors: `out[i, r]` becomes the sum over c of `W[r, c] * x[i, c]`, the same
/// bytes on every machine and with any number of threads.
///
/// `frame` is a dense frame of `Affine`, whose checksum was checked before: here, and below, only lengths
/// are. `x` and `out` are float32 and C-contiguous, of shapes (m, cols) and (m, rows). With `activations`
/// "float32", x is multiplied as it is, by weights as they are decoded, in sixteen sums of float32. With
/// "int8", x is rounded to 8 bits, in runs of up to 64 entries within a block of weights; NaN or infinity in
/// `x[i]` makes all of `out[i]` NaN. Where blocks cross the ends of rows, this is "float32".
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

/// Decodes `count` packed rows from `start` on to `out`: C-contiguous, of shape (count, cols), float32, or
/// uint16 to be given bfloat16, rounded to nearest even.
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

/// Decodes packed rows by their numbers, int64 of shape (n,), to `out` of shape (n, cols) as `packed_rows`
/// does. An IndexError, and nothing is written, if one is not that of a row.
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

/// The further codes of a tensor, after their CRC-32C: `more` bits each, at most 8 with those of its frame.
/// `values` is the tensor, float32 and C-contiguous.
#[pyfunction]
pub(crate) fn packed_further<'py>(
    frame: &Bound<'py, PyAny>,
    values: &Bound<'_, PyAny>,
    more: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let values = Tensor::get("values", values, false)?;
    let (floats, more): (_, u32) = (values.floats()?, number("more", more)?);
    nested(frame, |packed| packed.further(floats, more))
}

/// The frame of all bits, those of a frame and further ones, which `packed_further` returned: corrupt if
/// these have another length or checksum.
#[pyfunction]
pub(crate) fn packed_join<'py>(
    frame: &Bound<'py, PyAny>,
    further: &Bound<'_, PyAny>,
    more: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (further, more): (_, u32) = (Bytes::get("further", further)?, number("more", more)?);
    nested(frame, |packed| packed.join(further.as_slice(), more))
}

/// A frame with other codes and grids: a byte for each entry, and for each block the distance of two codes and
/// the value of code 0, float32 and C-contiguous, which are rounded to float16 under the power of two of the
/// frame. A ValueError if there are more or fewer, a code has more bits than the frame's, a step is negative,
/// or a step or a base is not finite in float16.
#[pyfunction]
pub(crate) fn packed_with_codes<'py>(
    frame: &Bound<'py, PyAny>,
    codes: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
    bases: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let codes = Bytes::get("codes", codes)?;
    let (steps, bases) = (Tensor::get("steps", steps, false)?, Tensor::get("bases", bases, false)?);
    let (steps, bases) = (steps.floats()?, bases.floats()?);
    let chosen = Chosen { codes: codes.as_slice(), steps, bases };
    nested(frame, |packed| packed.with_codes(chosen))
}

/// The frame of a tensor whose codes and grids were chosen as for `packed_with_codes`. Its largest magnitude
/// determines the power of two of the frame; `config` has the options of an `Affine`.
#[pyfunction]
pub(crate) fn packed_of_codes<'py>(
    values: &Bound<'py, PyAny>,
    config: &Bound<'_, PyDict>,
    codes: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
    bases: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (py, quantizer) = (values.py(), config::quantizer(config)?);
    let codes = Bytes::get("codes", codes)?;
    let [values, steps, bases] = [("values", values), ("steps", steps), ("bases", bases)]
        .map(|(name, array)| Tensor::get(name, array, false));
    let (values, steps, bases) = (values?, steps?, bases?);
    let (values, steps, bases) = (values.floats()?, steps.floats()?, bases.floats()?);
    let chosen = Chosen { codes: codes.as_slice(), steps, bases };
    let frame = py.detach(|| chosen.frame(values, quantizer));
    Ok(PyBytes::new(py, &frame.map_err(|error| to_py(py, error, None))?))
}

/// The error of packed values relative to what was packed: the norm of the errors over that of `values`; of
/// zeros, 0 if they are zeros still, otherwise infinity. `values`, and `decoded` for the decoded values if it
/// is given, are float32 and C-contiguous.
#[pyfunction]
#[pyo3(signature = (frame, values, decoded = None))]
pub(crate) fn packed_error(
    frame: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    decoded: Option<&Bound<'_, PyAny>>,
) -> PyResult<f64> {
    let values = Tensor::get("values", values, false)?;
    let mut decoded = decoded.map(|out| Writable::floats("decoded", out)).transpose()?;
    if let Some(out) = &decoded {
        disjoint("values", out, &values)?;
    }
    let floats = values.floats()?;
    let out = decoded.as_mut().map_or(&mut [][..], |out| out.as_mut_slice());
    with_all(frame, |packed| packed.error(floats, out))
}

/// What bytes are made of a frame, with other threads running.
fn nested<'py>(
    frame: &Bound<'py, PyAny>,
    work: impl FnOnce(&Packed<'_>) -> gradwire_core::Result<Vec<u8>> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(frame.py(), &with_all(frame, work)?))
}

/// What follows from all entries of a frame as one row, with other threads running.
fn with_all<T: Send>(
    frame: &Bound<'_, PyAny>,
    work: impl FnOnce(&Packed<'_>) -> gradwire_core::Result<T> + Send,
) -> PyResult<T> {
    let (py, data) = (frame.py(), Bytes::get("frame", frame)?);
    py.detach(|| {
        let frame = frame::Frame::parse_again(data.as_slice(), None)?;
        let numel = frame.header().numel as usize;
        work(&Packed::new(frame, 1, numel)?)
    })
    .map_err(|error| to_py(py, error, None))
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
