//! Parts of other packages, which code sections of a frame in Python.
//!
//! `gradwire._outside` stands between: it looks parts up by name, and checks what they return.

use gradwire_core::codec::outside::{CodeIndices, CodeValues, Coders};
use gradwire_core::frame::Frame;
use gradwire_core::frame::outside::{
    Coded, Indices, Values, check_positions, check_values_given, reframe,
};
use gradwire_core::{Error, Result};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::buffer::{Bytes, Positions, Tensor, to_numpy};
use crate::errors::to_py;
use crate::frame::to_bytes;
use crate::interrupt;

/// A part of a codec that codes one of the sections.
pub(crate) struct Coder {
    name: String,
    /// Name and options: what codecs of one kind share.
    identity: String,
    object: Py<PyAny>,
}

impl Coder {
    /// The part that an adapter of `gradwire._outside` is for.
    pub(crate) fn new(adapter: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = adapter.getattr("name")?.extract()?;
        let identity = adapter.getattr("identity")?.extract()?;
        Ok(Self { name, identity, object: adapter.clone().unbind() })
    }
}

/// What a codec has coded outside.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) values: Option<Coder>,
    pub(crate) indices: Option<Coder>,
}

impl Parts {
    /// Whether a state of one may be used with the other.
    pub(crate) fn identity(&self) -> [Option<&str>; 2] {
        [&self.values, &self.indices].map(|part| part.as_ref().map(|part| part.identity.as_str()))
    }

    /// Has them called for one encode of a tensor: its step so far, its name and its stream.
    pub(crate) fn calls<'a>(
        &'a self,
        step: u64,
        name: Option<&'a str>,
        stream: u64,
    ) -> Option<Calls<'a>> {
        if self.values.is_none() && self.indices.is_none() {
            return None;
        }
        let values = self.values.as_ref().map(|coder| ValueCall { coder, step, name, stream });
        Some(Calls { values, indices: self.indices.as_ref().map(IndexCall) })
    }
}

/// The calls of one encode.
pub(crate) struct Calls<'a> {
    values: Option<ValueCall<'a>>,
    indices: Option<IndexCall<'a>>,
}

impl Calls<'_> {
    pub(crate) fn coders(&mut self) -> Coders<'_> {
        Coders {
            values: self.values.as_mut().map(|call| call as &mut dyn CodeValues),
            indices: self.indices.as_mut().map(|call| call as &mut dyn CodeIndices),
        }
    }
}

struct ValueCall<'a> {
    coder: &'a Coder,
    step: u64,
    name: Option<&'a str>,
    stream: u64,
}

impl CodeValues for ValueCall<'_> {
    fn name(&self) -> &str {
        &self.coder.name
    }

    fn max_len(&mut self, count: u64) -> Result<usize> {
        calling(|py| self.coder.object.call_method1(py, "max_len", (count,))?.extract(py))
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

struct IndexCall<'a>(&'a Coder);

impl CodeIndices for IndexCall<'_> {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn max_len(&mut self, numel: u64, count: u64) -> Result<usize> {
        calling(|py| self.0.object.call_method1(py, "max_len", (numel, count))?.extract(py))
    }

    fn encode(&mut self, positions: &[u32], numel: u64, data: &mut Vec<u8>) -> Result<()> {
        calling(|py| {
            let positions = to_numpy(py, "uint32", positions)?;
            let code = self.0.object.bind(py).call_method1("encode", (positions, numel))?;
            replace(py, data, Bytes::get("data", &code)?.as_slice())
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

/// Has `read` read a frame, or where that has sections that are coded outside, one of the same
/// positions and values without any.
pub(crate) fn reading<T>(bytes: &[u8], mut read: impl FnMut(&Frame<'_>) -> Result<T>) -> Result<T> {
    let frame = Frame::parse_again(bytes, None)?;
    match read(&frame) {
        Err(Error::Outside { .. }) => read(&Frame::parse_again(&plain(&frame)?, None)?),
        result => result,
    }
}

/// A frame of the same positions and values, none of them coded outside.
pub(crate) fn plain(frame: &Frame<'_>) -> Result<Vec<u8>> {
    let (numel, count) = (frame.header().numel, frame.header().count);
    let coded = frame.outside();
    let (mut positions, mut values) = (None, None);
    if let Some(coded) = coded.indices {
        positions = Some(read_positions(coded, numel, count)?);
    }
    if let Some(Coded { name, data }) = coded.values {
        values = Some(calling(|py| {
            let array = call(py, "read_values", (name, to_bytes(py, data)?, count))?;
            let mut values = Vec::new();
            replace(py, &mut values, Tensor::get("values", &array, false)?.floats()?)?;
            Ok(values)
        })?);
        check_values_given(values.as_deref().unwrap_or_default(), count)?;
    }
    let mut out = Vec::new();
    let indices = positions.as_deref().map_or(Indices::Same, Indices::Plain);
    let values = values.as_deref().map_or(Values::Same, Values::Plain);
    reframe(frame, indices, values, None, &mut (&mut out).into())?;
    Ok(out)
}

/// Positions that are coded outside.
pub(crate) fn read_positions(coded: Coded<'_>, numel: u64, count: u64) -> Result<Vec<u32>> {
    let Coded { name, data } = coded;
    let positions = calling(|py| {
        let arguments = (name, to_bytes(py, data)?, numel, count);
        let array = call(py, "read_positions", arguments)?;
        let mut positions = Vec::new();
        replace(py, &mut positions, Positions::get("positions", &array)?.as_slice())?;
        Ok(positions)
    })?;
    check_positions(&positions, numel, count)?;
    Ok(positions)
}

fn call<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let import = || Ok::<_, PyErr>(py.import("gradwire._outside")?.into_any().unbind());
    MODULE.get_or_try_init(py, import)?.bind(py).getattr(function)?.call1(arguments)
}
