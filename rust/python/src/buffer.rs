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

use std::ffi::c_int;
use std::ops::Range;

use bytemuck::Pod;
use gradwire_core::bucket::Output;
use gradwire_core::{Dtype, Input};
use half::{bf16, f16};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An array to read, of one of the element types of [`Input`].
pub(crate) struct Tensor {
    buffer: PyUntypedBuffer,
    element: Element,
}

#[derive(Clone, Copy)]
enum Element {
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

/// Positions to read.
pub(crate) struct Positions(PyUntypedBuffer);

impl Positions {
    /// Borrow an array of uint32.
    pub(crate) fn get(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = || wrong_type(name, object, "a numpy array of uint32");
        let Ok(buffer) = exported(object) else { return Err(wrong()) };
        // Which of the two C types has 32 bits depends on the platform.
        if !matches!(format(&buffer), b"I" | b"L") || buffer.item_size() != size_of::<u32>() {
            return Err(wrong());
        }
        contiguous(name, &buffer)?;
        aligned(name, &buffer)?;
        Ok(Self(buffer))
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        // SAFETY: `get` checked contiguity, alignment, and that items are unsigned and of 32 bits.
        unsafe { slice(&self.0) }
    }
}

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

/// A writable array of one of the element types of [`Input`].
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

impl Readable for Positions {
    fn span(&self) -> Range<usize> {
        span(&self.0)
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

/// Bytes that Python may read in place: the base of everything that exports its memory.
#[pyclass(frozen, subclass, module = "gradwire._native")]
pub(crate) struct ReadOnlyBuffer(pub(crate) Vec<u8>);

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

/// # Safety
///
/// The buffer must be contiguous, aligned for T, and its items those of T.
unsafe fn slice<T: Pod>(buffer: &PyUntypedBuffer) -> &[T] {
    let len = buffer.item_count();
    if len == 0 {
        // Empty exporters may have a null pointer.
        return &[];
    }
    // SAFETY: the caller's promise; T is plain old data; see the top of the file for the lifetime.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), len) }
}

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
