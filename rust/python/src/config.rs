//! The plain dict that `gradwire.Codec.get_config` returns, as a codec of the core.
//!
//! The Python classes have checked every option, with better words than could be found here.

use gradwire_core::codec::Codec;
use gradwire_core::fit::Distribution;
use gradwire_core::fit::controller::Mode;
use gradwire_core::memory::Memory;
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::Quantizer;
use gradwire_core::sparsify::{Amount, Sid, Sparsifier};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::to_py;

/// The codec a configuration describes.
pub(crate) fn codec(config: &Bound<'_, PyDict>) -> PyResult<Codec> {
    let sparsify = sparsifier(&get(config, "sparsify")?)?;
    let quantize = quantizer(&get(config, "quantize")?)?;
    let memory = memory(&get(config, "memory")?)?;
    let indices = index_coding(&get::<String>(config, "indices")?)?;
    Codec::new(sparsify, quantize, memory, indices).map_err(|error| to_py(config.py(), error, None))
}

fn sparsifier(part: &Bound<'_, PyDict>) -> PyResult<Sparsifier> {
    Ok(match kind(part)?.as_str() {
        "all" => Sparsifier::All,
        "threshold" => Sparsifier::Threshold { threshold: get::<f64>(part, "threshold")? as f32 },
        "topk" => Sparsifier::TopK { amount: amount(part)? },
        "sid" => Sparsifier::Sid(Sid {
            ratio: get(part, "ratio")?,
            distribution: distribution(&get::<String>(part, "distribution")?)?,
            mode: mode(&get(part, "stages")?)?,
            first_ratio: get(part, "first_ratio")?,
            // A pair is a list once it has been through JSON.
            band: get::<Option<[f64; 2]>>(part, "band")?.map(|[low, high]| (low, high)),
        }),
        other => return Err(unknown("sparsifier", other)),
    })
}

fn amount(part: &Bound<'_, PyDict>) -> PyResult<Amount> {
    Ok(match get::<Option<u64>>(part, "k")? {
        Some(k) => Amount::Count(k),
        None => Amount::Ratio(get(part, "ratio")?),
    })
}

fn distribution(name: &str) -> PyResult<Distribution> {
    Ok(match name {
        "pareto" => Distribution::GeneralizedPareto,
        "exponential" => Distribution::Exponential,
        "gamma" => Distribution::Gamma,
        other => return Err(unknown("distribution", other)),
    })
}

fn mode(stages: &Bound<'_, PyAny>) -> PyResult<Mode> {
    let Ok(name) = stages.extract::<String>() else {
        return Ok(Mode::Fixed(stages.extract()?));
    };
    match name.as_str() {
        "adaptive" => Ok(Mode::Adaptive),
        "paper" => Ok(Mode::Paper),
        "tracking" => Ok(Mode::Tracking),
        other => Err(unknown("stage controller", other)),
    }
}

fn quantizer(part: &Bound<'_, PyDict>) -> PyResult<Quantizer> {
    Ok(match kind(part)?.as_str() {
        "float32" => Quantizer::Float32,
        "bfloat16" => Quantizer::BFloat16,
        "float16" => Quantizer::Float16 { scaled: get(part, "scaled")? },
        other => return Err(unknown("quantizer", other)),
    })
}

fn memory(part: &Bound<'_, PyDict>) -> PyResult<Memory> {
    Ok(match kind(part)?.as_str() {
        "none" => Memory::None,
        "residual" => Memory::Residual {
            decay: get::<f64>(part, "decay")? as f32,
            low_memory: get(part, "low_memory")?,
        },
        other => return Err(unknown("memory", other)),
    })
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
    value.extract().map_err(Into::into)
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("{name:?} is no {what}"))
}
