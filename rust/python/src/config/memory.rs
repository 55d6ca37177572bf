//! Memories.

use gradwire_core::memory::{LowPass, Memory, MomentumCorrection, Residual};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{get, kind, unknown};

pub(super) fn memory(part: &Bound<'_, PyDict>) -> PyResult<Memory> {
    Ok(match kind(part)?.as_str() {
        "none" => Memory::None,
        "residual" => Memory::Residual(Residual {
            decay: get::<f64>(part, "decay")? as f32,
            low_memory: get(part, "low_memory")?,
        }),
        "low_pass" => Memory::LowPass(LowPass { beta: get::<f64>(part, "beta")? as f32 }),
        "momentum_correction" => Memory::MomentumCorrection(MomentumCorrection {
            momentum: get::<f64>(part, "momentum")? as f32,
            nesterov: get(part, "nesterov")?,
            masking: get(part, "masking")?,
            clip: get::<Option<f64>>(part, "clip")?.map(|clip| clip as f32),
        }),
        other => return Err(unknown("memory", other)),
    })
}
