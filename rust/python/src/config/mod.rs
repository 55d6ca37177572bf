//! Converts the plain dict that `gradwire.Codec.get_config` returns to a codec of the core.
//!
//! The Python classes have already checked every option, with better messages.

mod memory;
mod quantize;
mod sparsify;

use gradwire_core::codec::Codec;
use gradwire_core::pack::IndexCoding;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::to_py;
use crate::number::number;

/// The codec a configuration describes.
pub(crate) fn codec(config: &Bound<'_, PyDict>) -> PyResult<Codec> {
    let sparsify = sparsify::sparsifier(&get(config, "sparsify")?)?;
    let quantize = quantize::quantizer(&get(config, "quantize")?)?;
    let memory = memory::memory(&get(config, "memory")?)?;
    let indices = index_coding(&get::<String>(config, "indices")?)?;
    Codec::new(sparsify, quantize, memory, indices).map_err(|error| to_py(config.py(), error, None))
}

fn index_coding(name: &str) -> PyResult<IndexCoding> {
    Ok(match name {
        "auto" => IndexCoding::Auto,
        "elias-fano" => IndexCoding::EliasFano,
        "rice" => IndexCoding::Rice,
        "bitmap" => IndexCoding::Bitmap,
        other => return Err(unknown("index coding", other)),
    })
}

fn kind(part: &Bound<'_, PyDict>) -> PyResult<String> {
    get(part, "kind")
}

fn get<'py, T>(config: &Bound<'py, PyDict>, name: &str) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    let value = config.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
    number(name, &value)
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("{name:?} is no {what}"))
}
