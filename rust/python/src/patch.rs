//! Patches: what makes a tensor of another, and undoes that.

use gradwire_core::pack::floats::Format;
use gradwire_core::pack::patch::{self, Entries, Undo};
use gradwire_core::pool;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Bytes, Writable, disjoint};
use crate::errors::to_py;
use crate::lossless;

/// The format of entries, by its name.
fn entries(format: &str) -> PyResult<Entries> {
    if format == "bytes" {
        return Ok(Entries { format: Format::BYTE, size: 1 });
    }
    let (format, size) = lossless::format(format)?;
    Ok(Entries { format, size })
}

/// Returns what makes `values` of a `base` of as many bytes, uint8: blocks of 2^20 entries in the format "bfloat16",
/// "float16", "float32" or "bytes", the last for 8-bit floats and all that is no float.
#[pyfunction]
pub(crate) fn patch_encode<'py>(
    py: Python<'py>,
    format: &str,
    values: &Bound<'py, PyAny>,
    base: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let entries = entries(format)?;
    let (values, base) = (Bytes::get("values", values)?, Bytes::get("base", base)?);
    let (values, base) = (values.as_slice(), base.as_slice());
    lossless::whole("values", values.len(), entries.size)?;
    lossless::as_long(base, values)?;
    let coded = py.detach(|| {
        let mut out = Vec::new();
        let put = |block: &[u8]| out.extend_from_slice(block);
        patch::write(entries, values, base, pool::num_threads(), put);
        out
    });
    Ok(PyBytes::new(py, &coded))
}

/// Returns whether a patch was made from this base, and how many bytes its blocks are; others may follow.
#[pyfunction]
pub(crate) fn patch_check(
    format: &str,
    patch: &Bound<'_, PyAny>,
    base: &Bound<'_, PyAny>,
) -> PyResult<(bool, usize)> {
    let py = patch.py();
    let entries = entries(format)?;
    let (patch, base) = (Bytes::get("patch", patch)?, Bytes::get("base", base)?);
    let (patch, base) = (patch.as_slice(), base.as_slice());
    lossless::whole("base", base.len(), entries.size)?;
    py.detach(|| patch::check(entries, patch, base, pool::num_threads()))
        .map_err(|error| to_py(py, error, None))
}

/// What undoes a patch.
#[pyclass(frozen)]
pub(crate) struct PatchUndo {
    entries: Entries,
    undo: Undo,
}

#[pymethods]
impl PatchUndo {
    /// Makes the base again of what the patch has made.
    fn __call__(&self, patch: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = patch.py();
        let (patch, mut out) = (Bytes::get("patch", patch)?, Writable::bytes("out", out)?);
        disjoint("patch", &out, &patch)?;
        let (patch, out) = (patch.as_slice(), out.as_mut_slice());
        py.detach(|| patch::undo(self.entries, patch, &self.undo, out))
            .map_err(|error| to_py(py, error, None))
    }
}

/// Makes of the base in `out`, uint8, what a patch does, and returns how many bytes its blocks are, and what undoes that.
///
/// After an error `out` is as it was.
#[pyfunction]
pub(crate) fn patch_apply(
    format: &str,
    patch: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<(usize, PatchUndo)> {
    let py = patch.py();
    let entries = entries(format)?;
    let (patch, mut out) = (Bytes::get("patch", patch)?, Writable::bytes("out", out)?);
    disjoint("patch", &out, &patch)?;
    let (patch, out) = (patch.as_slice(), out.as_mut_slice());
    lossless::whole("out", out.len(), entries.size)?;
    let (len, undo) = py
        .detach(|| patch::apply(entries, patch, out, pool::num_threads()))
        .map_err(|error| to_py(py, error, None))?;
    Ok((len, PatchUndo { entries, undo }))
}
