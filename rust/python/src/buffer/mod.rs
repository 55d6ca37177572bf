//! Memory of Python objects as slices, and slices as Python objects, by the buffer protocol.
//!
//! The only unsafe code of the bindings. What makes each slice valid:
//!
//! * A `Py_buffer` is held for as long as the slice lives, which the borrow checker sees to. Its
//!   exporter must neither move nor free the memory until the buffer is released.
//! * Contiguity, item size, format and alignment are checked before a slice is made.
//! * A slice that is written to is made from a buffer that was exported as writable, and never
//!   while another slice of the same call covers any of its bytes ([`disjoint`]).
//! * Other Python threads run meanwhile, and the protocol does not prevent them from writing to an
//!   array that is being encoded. Callers must prevent that, as with numpy and torch, and the public
//!   documentation says so.
#![allow(unsafe_code)]

mod export;
mod read;
mod write;

use std::ops::Range;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

pub(crate) use export::{ReadOnlyBuffer, empty, to_numpy};
pub(crate) use read::{Bytes, Indices, Positions, Tensor};
pub(crate) use write::{Writable, WritableTensor, disjoint};

/// The buffer of an object; of an array without dimensions, that of the same memory with one.
fn exported(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(object).or_else(|error| {
        let flags = object.getattr("flags").map_err(|_| error)?;
        let flat = object.call_method1("reshape", (-1,))?;
        // Of a numpy scalar, which nobody may write to, that was a copy.
        flat.getattr("flags")?.setattr("writeable", flags.getattr("writeable")?)?;
        PyUntypedBuffer::get(&flat)
    })
}

/// The format of the items, without the marks of the byte order that this machine has.
fn format(buffer: &PyUntypedBuffer) -> &[u8] {
    const ORDER: u8 = if cfg!(target_endian = "little") { b'<' } else { b'>' };
    match buffer.format().to_bytes() {
        [b'@' | b'=', code @ ..] => code,
        [order, code @ ..] if *order == ORDER => code,
        code => code,
    }
}

fn span(buffer: &PyUntypedBuffer) -> Range<usize> {
    let start = buffer.buf_ptr().addr();
    start..start + buffer.len_bytes()
}

fn contiguous(name: &str, buffer: &PyUntypedBuffer) -> PyResult<()> {
    if buffer.is_c_contiguous() {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} must be C-contiguous, got shape {:?} with strides {:?} bytes; \
         pass numpy.ascontiguousarray({name})",
        buffer.shape(),
        buffer.strides(),
    )))
}

fn aligned(name: &str, buffer: &PyUntypedBuffer) -> PyResult<()> {
    if buffer.item_count() == 0 || buffer.buf_ptr().addr().is_multiple_of(buffer.item_size()) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} must be aligned to its items of {} bytes; pass {name}.copy()",
        buffer.item_size()
    )))
}

fn wrong_type(name: &str, object: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let class = object.get_type();
    let module = class.module().map_or_else(|_| String::new(), |name| name.to_string());
    let class = class.name().map_or_else(|_| String::from("object"), |name| name.to_string());
    let (given, hint) = match (module.split('.').next(), dtype_name(object)) {
        (Some("torch"), Some(_)) => {
            (format!("a torch.{class}"), "; for tensors use the same function of gradwire.torch")
        }
        (_, Some(dtype)) => (format!("{class} of {dtype}"), ""),
        _ => (class, ""),
    };
    PyTypeError::new_err(format!("{name} must be {expected}, got {given}{hint}"))
}

fn dtype_name(object: &Bound<'_, PyAny>) -> Option<String> {
    Some(object.getattr("dtype").ok()?.str().ok()?.to_string())
}
