//! Quantizers of other packages, which code the values of a frame in Python.
//!
//! `gradwire._outside` stands between: it looks them up by name, and checks what they return.

use gradwire_core::codec::outside::CodeValues;
use gradwire_core::frame::Frame;
use gradwire_core::frame::outside::{Coded, Values, check_values, reframe};
use gradwire_core::{Error, Result};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::buffer::{Bytes, Tensor, to_numpy};
use crate::errors::to_py;
use crate::frame::to_bytes;
use crate::interrupt;

/// A quantizer that is written in Python.
pub(crate) struct Coder {
    pub(crate) name: String,
    pub(crate) bits: u32,
    /// Name and options: what codecs of one kind share.
    pub(crate) identity: String,
    object: Py<PyAny>,
}

impl Coder {
    /// The quantizer that an adapter of `gradwire._outside` is for.
    pub(crate) fn new(adapter: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = adapter.getattr("name")?.extract()?;
        let bits = adapter.getattr("bits")?.extract()?;
        let identity = adapter.getattr("identity")?.extract()?;
        Ok(Self { name, bits, identity, object: adapter.clone().unbind() })
    }

    /// Has it called for one encode of a tensor: its step so far, its name and its stream.
    pub(crate) fn calls<'a>(&'a self, step: u64, name: Option<&'a str>, stream: u64) -> Calls<'a> {
        Calls { coder: self, step, name, stream }
    }
}

/// The calls of one encode.
pub(crate) struct Calls<'a> {
    coder: &'a Coder,
    step: u64,
    name: Option<&'a str>,
    stream: u64,
}

impl CodeValues for Calls<'_> {
    fn name(&self) -> &str {
        &self.coder.name
    }

    fn bits(&self) -> u32 {
        self.coder.bits
    }

    fn encode(&mut self, values: &[f32], data: &mut Vec<u8>, decoded: &mut Vec<f32>) -> Result<()> {
        calling(|py| {
            let values = to_numpy(py, "float32", values)?;
            let arguments = (values, self.step, self.name, self.stream);
            let result = self.coder.object.bind(py).call_method1("encode", arguments)?;
            let (code, read): (Bound<'_, PyAny>, Bound<'_, PyAny>) = result.extract()?;
            replace(py, data, Bytes::get("data", &code)?.as_slice())?;
            replace(py, decoded, Tensor::get("values", &read, false)?.floats()?)
        })
    }
}

/// Calls Python from an encode or a decode that lets other threads run.
fn calling<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
    Python::attach(call).map_err(interrupt::hold)
}

fn replace<T: Copy>(py: Python<'_>, target: &mut Vec<T>, source: &[T]) -> PyResult<()> {
    target.clear();
    if target.try_reserve_exact(source.len()).is_err() {
        let bytes = size_of_val(source) as u64;
        return Err(to_py(py, Error::OutOfMemory { bytes }, None));
    }
    target.extend_from_slice(source);
    Ok(())
}

/// Has `read` read a frame, or where its values are coded outside, one of the same entries whose are
/// not.
pub(crate) fn reading<T>(
    frame: &Frame<'_>,
    mut read: impl FnMut(&Frame<'_>) -> Result<T>,
) -> Result<T> {
    match read(frame) {
        Err(Error::Outside { .. }) => read(&Frame::parse_again(&plain(frame)?, None)?),
        result => result,
    }
}

/// A frame of the same entries, its values not coded outside.
pub(crate) fn plain(frame: &Frame<'_>) -> Result<Vec<u8>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let count = frame.header().count;
    let mut values = Vec::new();
    match frame.outside() {
        None => frame.values_into(&mut values)?,
        Some(Coded { name, data }) => calling(|py| {
            let arguments = (name, to_bytes(py, data)?, count);
            let import = || Ok::<_, PyErr>(py.import("gradwire._outside")?.into_any().unbind());
            let module = MODULE.get_or_try_init(py, import)?.bind(py);
            let array = module.getattr("read_values")?.call1(arguments)?;
            replace(py, &mut values, Tensor::get("values", &array, false)?.floats()?)
        })?,
    }
    check_values(&values, count)?;
    let mut out = Vec::new();
    reframe(frame, Values::Plain(&values), None, &mut (&mut out).into())?;
    Ok(out)
}
