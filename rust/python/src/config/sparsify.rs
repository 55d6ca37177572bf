//! Sparsifiers.

use gradwire_core::fit::Distribution;
use gradwire_core::fit::controller::Mode;
use gradwire_core::sparsify::{Amount, Sid, Sparsifier};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{get, kind, unknown};

pub(super) fn sparsifier(part: &Bound<'_, PyDict>) -> PyResult<Sparsifier> {
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
