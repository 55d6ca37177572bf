//! Quantizers.

use gradwire_core::quantize::Quantizer;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{get, kind, unknown};

pub(super) fn quantizer(part: &Bound<'_, PyDict>) -> PyResult<Quantizer> {
    Ok(match kind(part)?.as_str() {
        "float32" => Quantizer::Float32,
        "bfloat16" => Quantizer::BFloat16,
        "float16" => Quantizer::Float16 { scaled: get(part, "scaled")? },
        other => return Err(unknown("quantizer", other)),
    })
}
