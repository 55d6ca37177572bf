//! What is written to a caller's memory.

use std::ops::Range;

use bytemuck::Pod;
use gradwire_core::bucket::Output;
use half::{bf16, f16};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::read::{Element, Readable, Tensor};
use super::{aligned, contiguous, exported, format, span, wrong_type};

/// A writable array of `T`.
pub(crate) struct Writable<T> {
    buffer: PyUntypedBuffer,
    element: std::marker::PhantomData<T>,
}

impl Writable<f32> {
    /// Borrow a float32 array to write to.
    pub(crate) fn floats(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(name, object, b"f", "a numpy array of float32")
    }
}

impl Writable<bf16> {
    /// Borrow a uint16 array to write bfloat16 to; none if it is of other elements.
    pub(crate) fn brains(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        match exported(object) {
            Ok(buffer) if format(&buffer) == b"H" => {
                Self::get(name, object, b"H", "a numpy array of uint16").map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Writable<u8> {
    /// Borrow a uint8 array, a bytearray or the like to write to.
    pub(crate) fn bytes(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(name, object, b"B", "a numpy array of uint8")
    }
}

impl<T: Pod> Writable<T> {
    fn get(name: &str, object: &Bound<'_, PyAny>, code: &[u8], expected: &str) -> PyResult<Self> {
        let Ok(buffer) = exported(object) else {
            return Err(wrong_type(name, object, expected));
        };
        if format(&buffer) != code || buffer.item_size() != size_of::<T>() {
            return Err(wrong_type(name, object, expected));
        }
        if buffer.readonly() {
            return Err(PyValueError::new_err(format!(
                "{name} is read-only; pass a writable array"
            )));
        }
        contiguous(name, &buffer)?;
        aligned(name, &buffer)?;
        Ok(Self { buffer, element: std::marker::PhantomData })
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.item_count()
    }

    /// The elements, in C order. Check [`disjoint`] first where other slices are alive.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        let len = self.len();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: `get` checked that the buffer is writable, contiguous, aligned and of items of
        // T's size and format; T is plain old data; `&mut self` keeps this the only slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast(), len) }
    }

    fn span(&self) -> Range<usize> {
        span(&self.buffer)
    }
}

/// A writable array of one of the element types of [`gradwire_core::Input`].
pub(crate) enum WritableTensor {
    F32(Writable<f32>),
    F64(Writable<f64>),
    F16(Writable<f16>),
    BF16(Writable<bf16>),
}

/// Do the same with the array of any element type.
macro_rules! each {
    ($tensor:expr, $array:ident => $body:expr) => {
        match $tensor {
            WritableTensor::F32($array) => $body,
            WritableTensor::F64($array) => $body,
            WritableTensor::F16($array) => $body,
            WritableTensor::BF16($array) => $body,
        }
    };
}

impl WritableTensor {
    /// Borrow an array of float32, float64, float16, or of bfloat16 as uint16, to write to.
    pub(crate) fn get(name: &str, object: &Bound<'_, PyAny>, bfloat16: bool) -> PyResult<Self> {
        let expected = "a numpy array of float32, float64 or float16";
        if bfloat16 {
            return Writable::get(name, object, b"H", expected).map(Self::BF16);
        }
        match Tensor::get(name, object, false)?.element {
            Element::F64 => Writable::get(name, object, b"d", expected).map(Self::F64),
            Element::F16 => Writable::get(name, object, b"e", expected).map(Self::F16),
            _ => Writable::get(name, object, b"f", expected).map(Self::F32),
        }
    }

    /// Refuse entries that are not there.
    pub(crate) fn check(&self, range: &Range<usize>) -> PyResult<()> {
        let len = each!(self, array => array.len());
        if range.start <= range.end && range.end <= len {
            return Ok(());
        }
        let Range { start, end } = range;
        Err(PyValueError::new_err(format!(
            "entries {start} to {end} are outside an array of {len}"
        )))
    }

    /// Elements that [`WritableTensor::check`] found to be there.
    pub(crate) fn output(&mut self, range: Range<usize>) -> Output<'_> {
        match self {
            Self::F32(array) => Output::F32(&mut array.as_mut_slice()[range]),
            Self::F64(array) => Output::F64(&mut array.as_mut_slice()[range]),
            Self::F16(array) => Output::F16(&mut array.as_mut_slice()[range]),
            Self::BF16(array) => Output::BF16(&mut array.as_mut_slice()[range]),
        }
    }

    /// As [`disjoint`].
    pub(crate) fn disjoint(&self, name: &str, input: &impl Readable) -> PyResult<()> {
        each!(self, array => disjoint(name, array, input))
    }
}

/// Refuse an output that shares memory with an input.
pub(crate) fn disjoint<T: Pod>(
    name: &str,
    out: &Writable<T>,
    input: &impl Readable,
) -> PyResult<()> {
    let (out, input) = (out.span(), input.span());
    if out.start < input.end && input.start < out.end {
        return Err(PyValueError::new_err(format!("out shares memory with {name}")));
    }
    Ok(())
}
