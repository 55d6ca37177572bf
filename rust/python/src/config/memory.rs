//! Memories.

use gradwire_core::memory::Memory;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{get, kind, unknown};

pub(super) fn memory(part: &Bound<'_, PyDict>) -> PyResult<Memory> {
    Ok(match kind(part)?.as_str() {
        "none" => Memory::None,
        "residual" => Memory::Residual {
            decay: get::<f64>(part, "decay")? as f32,
            low_memory: get(part, "low_memory")?,
        },
        other => return Err(unknown("memory", other)),
    })
}
