//! Memory that Python gets: arrays of numpy, and bytes that it reads in place.

use std::ffi::c_int;

use bytemuck::Pod;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::scratch;

/// Bytes that Python may read in place: the base of everything that exports its memory.
#[pyclass(frozen, subclass, module = "gradwire._native")]
pub(crate) struct ReadOnlyBuffer(pub(crate) Vec<u8>);

impl Drop for ReadOnlyBuffer {
    fn drop(&mut self) {
        scratch::recycle(std::mem::take(&mut self.0));
    }
}

#[pymethods]
impl ReadOnlyBuffer {
    // The interpreter calls it, through a wrapper that has the reference to give away.
    #[allow(clippy::needless_pass_by_value)]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.as_slice();
        // A vector never exceeds isize::MAX bytes.
        let (pointer, len) = (bytes.as_ptr(), bytes.len() as isize);
        // SAFETY: the interpreter passes a view to fill; the function refuses a null one and a
        // request for writable memory by itself. The view gets a strong reference to `slf`, whose
        // class is frozen, so the bytes neither move nor change until the view is released.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer.cast_mut().cast(), len, 1, flags)
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// A new numpy array with a copy of these elements.
pub(crate) fn to_numpy<'py, T: Pod>(
    py: Python<'py>,
    dtype: &str,
    values: &[T],
) -> PyResult<Bound<'py, PyAny>> {
    let array = empty(py, values.len(), dtype)?;
    if !values.is_empty() {
        let buffer = PyUntypedBuffer::get(&array)?;
        if buffer.len_bytes() != size_of_val(values) {
            return Err(PyTypeError::new_err(format!("{dtype} has another item size")));
        }
        // SAFETY: the array is new, so nobody else knows of it, and has exactly as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), buffer.buf_ptr().cast(), values.len());
        }
    }
    Ok(array)
}

/// `numpy.empty(numel, dtype)`.
pub(crate) fn empty<'py>(
    py: Python<'py>,
    numel: usize,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    EMPTY.import(py, "numpy", "empty")?.call1((numel, dtype))
}
