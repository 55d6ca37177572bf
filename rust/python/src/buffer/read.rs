//! What is read of a caller's memory.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use gradwire_core::{Dtype, Input};
use half::{bf16, f16};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::{aligned, contiguous, dtype_name, exported, format, span, wrong_type};

/// An array to read, of one of the element types of [`Input`].
pub(crate) struct Tensor {
    buffer: PyUntypedBuffer,
    pub(super) element: Element,
}

#[derive(Clone, Copy)]
pub(super) enum Element {
    F32,
    F64,
    F16,
    BF16,
}

impl Tensor {
    /// Borrow an array of float32, float64, float16 or bfloat16.
    ///
    /// bfloat16 has no format character: arrays of it are viewed as uint16 first, by the caller
    /// (who then says so) or here.
    pub(crate) fn get(name: &str, object: &Bound<'_, PyAny>, bfloat16: bool) -> PyResult<Self> {
        let wrong = || wrong_type(name, object, "a numpy array of float32, float64 or float16");
        let Ok(buffer) = exported(object) else {
            return match dtype_name(object).as_deref() {
                Some("bfloat16") if !bfloat16 => {
                    Self::get(name, &object.call_method1("view", ("uint16",))?, true)
                }
                _ => Err(wrong()),
            };
        };
        let element = match (format(&buffer), buffer.item_size(), bfloat16) {
            (b"f", 4, false) => Element::F32,
            (b"d", 8, false) => Element::F64,
            (b"e", 2, false) => Element::F16,
            (b"H", 2, true) => Element::BF16,
            _ => return Err(wrong()),
        };
        contiguous(name, &buffer)?;
        aligned(name, &buffer)?;
        Ok(Self { buffer, element })
    }

    pub(crate) fn numel(&self) -> usize {
        self.buffer.item_count()
    }

    pub(crate) fn nbytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.input().dtype()
    }

    /// The elements, if they are float32.
    pub(crate) fn floats(&self) -> PyResult<&[f32]> {
        match self.input() {
            Input::F32(values) => Ok(values),
            _ => Err(PyTypeError::new_err("expected a numpy array of float32")),
        }
    }

    /// The elements, in C order.
    pub(crate) fn input(&self) -> Input<'_> {
        // SAFETY: `get` checked contiguity and alignment, and that format and item size are those
        // of the element type.
        unsafe {
            match self.element {
                Element::F32 => Input::F32(slice(&self.buffer)),
                Element::F64 => Input::F64(slice(&self.buffer)),
                Element::F16 => Input::F16(slice::<f16>(&self.buffer)),
                Element::BF16 => Input::BF16(slice::<bf16>(&self.buffer)),
            }
        }
    }
}

/// Bytes to read.
pub(crate) struct Bytes(PyUntypedBuffer);

impl Bytes {
    pub(crate) fn get(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(buffer) = exported(object) else {
            return Err(wrong_type(name, object, "a bytes-like object"));
        };
        if buffer.item_size() != 1 {
            return Err(wrong_type(name, object, "a bytes-like object with items of one byte"));
        }
        contiguous(name, &buffer)?;
        Ok(Self(buffer))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `get` checked contiguity; items are bytes.
        unsafe { slice(&self.0) }
    }
}

/// Whole numbers to read.
pub(crate) struct Integers<T> {
    buffer: PyUntypedBuffer,
    element: PhantomData<T>,
}

/// Positions in a frame.
pub(crate) type Positions = Integers<u32>;

/// Indices as Python has them.
pub(crate) type Indices = Integers<i64>;

// Which of the C types has how many bits depends on the platform.
impl Positions {
    /// Borrow an array of uint32.
    pub(crate) fn get(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(name, object, &[b"I", b"L"], "a numpy array of uint32")
    }
}

impl Indices {
    /// Borrow an array of int64.
    pub(crate) fn get(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(name, object, &[b"l", b"q"], "a numpy array of int64")
    }
}

impl<T: Pod> Integers<T> {
    fn of(
        name: &str,
        object: &Bound<'_, PyAny>,
        codes: &[&[u8]],
        expected: &str,
    ) -> PyResult<Self> {
        let wrong = || wrong_type(name, object, expected);
        let Ok(buffer) = exported(object) else { return Err(wrong()) };
        if !codes.contains(&format(&buffer)) || buffer.item_size() != size_of::<T>() {
            return Err(wrong());
        }
        contiguous(name, &buffer)?;
        aligned(name, &buffer)?;
        Ok(Self { buffer, element: PhantomData })
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `of` checked contiguity, alignment, and that items are whole numbers of T's size.
        unsafe { slice(&self.buffer) }
    }
}

/// What is read of a caller's memory.
pub(crate) trait Readable {
    /// The addresses of its bytes.
    fn span(&self) -> Range<usize>;
}

impl Readable for Tensor {
    fn span(&self) -> Range<usize> {
        span(&self.buffer)
    }
}

impl Readable for Bytes {
    fn span(&self) -> Range<usize> {
        span(&self.0)
    }
}

impl<T> Readable for Integers<T> {
    fn span(&self) -> Range<usize> {
        span(&self.buffer)
    }
}

/// # Safety
///
/// The buffer must be contiguous, aligned for T, and its items those of T.
unsafe fn slice<T: Pod>(buffer: &PyUntypedBuffer) -> &[T] {
    let len = buffer.item_count();
    if len == 0 {
        // Empty exporters may have a null pointer.
        return &[];
    }
    // SAFETY: the caller's promise; T is plain old data; see the top of the module for the
    // lifetime.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), len) }
}
