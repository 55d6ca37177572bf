//! The plain dict that `gradwire.Codec.get_config` returns as a codec of the core.
//!
//! The Python classes have already checked every option, with better messages.

use gradwire_core::codec::Codec;
use gradwire_core::memory::Memory;
use gradwire_core::pack::IndexCoding;
use gradwire_core::part::{Options, Value};
use gradwire_core::quantize::Quantizer;
use gradwire_core::sparsify::Sparsifier;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors::to_py;
use crate::number::number;

/// The codec a configuration describes.
pub(crate) fn codec(config: &Bound<'_, PyDict>) -> PyResult<Codec> {
    let (sparsify, quantize) = (options(config, "sparsify")?, options(config, "quantize")?);
    let memory = options(config, "memory")?;
    let indices: String = item(config, "indices")?.extract()?;
    read(&sparsify, &quantize, &memory, &indices).map_err(|error| to_py(config.py(), error, None))
}

/// The quantizer that its options describe.
pub(crate) fn quantizer(given: &Bound<'_, PyDict>) -> PyResult<Quantizer> {
    Quantizer::read(&named(given)?).map_err(|error| to_py(given.py(), error, None))
}

fn read(
    sparsify: &Options,
    quantize: &Options,
    memory: &Options,
    indices: &str,
) -> gradwire_core::Result<Codec> {
    let (sparsifier, quantizer) = (Sparsifier::read(sparsify)?, Quantizer::read(quantize)?);
    Codec::new(sparsifier, quantizer, Memory::read(memory)?, IndexCoding::named(indices)?)
}

/// The options of a part of a configuration.
fn options(config: &Bound<'_, PyDict>, part: &str) -> PyResult<Options> {
    named(&item(config, part)?.cast_into::<PyDict>()?)
}

fn named(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut values = Vec::with_capacity(given.len());
    for (name, object) in given {
        let name: String = name.extract()?;
        values.push((name.clone(), value(&name, &object)?));
    }
    Ok(Options::new(item(given, "kind")?.extract::<String>()?, values))
}

fn item<'py>(config: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    config.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

/// An option as a plain value.
fn value(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    if object.is_none() {
        return Ok(Value::None);
    }
    // A bool is an int, too.
    if object.is_instance_of::<PyBool>() {
        return Ok(Value::Flag(object.extract()?));
    }
    if object.is_instance_of::<PyInt>() {
        return number(name, object).map(Value::Whole);
    }
    if object.is_instance_of::<PyFloat>() {
        return number(name, object).map(Value::Real);
    }
    if object.is_instance_of::<PyString>() {
        return Ok(Value::Text(object.extract()?));
    }
    // A pair is a list once it has been through JSON.
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let values: PyResult<_> = object.try_iter()?.map(|each| value(name, &each?)).collect();
        return values.map(Value::List);
    }
    let class = object.get_type().name()?;
    Err(PyTypeError::new_err(format!("{name}: no option is of type {class}")))
}
