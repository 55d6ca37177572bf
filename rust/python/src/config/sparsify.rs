//! Sparsifiers.

use gradwire_core::fit::Distribution;
use gradwire_core::fit::controller::Mode;
use gradwire_core::rng::tensor_id;
use gradwire_core::sparsify::{
    Amount, BinMax, ChunkTopK, Custom, Gaussian, RandomK, SampledTopK, Sid, Sparsifier, Threshold,
    Tile, TopK, TrimMethod, Trimmed, TwoSided,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{get, kind, unknown};

pub(super) fn sparsifier(part: &Bound<'_, PyDict>) -> PyResult<Sparsifier> {
    Ok(match kind(part)?.as_str() {
        "all" => Sparsifier::All,
        "threshold" => {
            Sparsifier::Threshold(Threshold { threshold: get::<f64>(part, "threshold")? as f32 })
        }
        "topk" => Sparsifier::TopK(TopK { amount: amount(part)? }),
        "sid" => Sparsifier::Sid(Sid {
            ratio: get(part, "ratio")?,
            distribution: distribution(&get::<String>(part, "distribution")?)?,
            mode: mode(&get(part, "stages")?)?,
            first_ratio: get(part, "first_ratio")?,
            band: band(part)?,
        }),
        "sampled_topk" => Sparsifier::SampledTopK(SampledTopK {
            ratio: get(part, "ratio")?,
            sample_ratio: get(part, "sample_ratio")?,
            strided: get(part, "strided")?,
            resample: get(part, "resample")?,
            upper: get(part, "upper")?,
            lower: get(part, "lower")?,
            seed: get(part, "seed")?,
        }),
        "bin_max" => Sparsifier::BinMax(BinMax {
            // Of a tensor whose shape is not known: it may as well be a matrix.
            bin: get::<Option<u32>>(part, "bin")?.unwrap_or(500),
            soft: get::<f64>(part, "soft")? as f32,
        }),
        "two_sided" => Sparsifier::TwoSided(TwoSided {
            proportion: get(part, "proportion")?,
            sample: get(part, "sample")?,
            seed: get(part, "seed")?,
        }),
        "gaussian" => Sparsifier::Gaussian(Gaussian {
            ratio: get(part, "ratio")?,
            rounds: get(part, "rounds")?,
            band: band(part)?,
        }),
        "trimmed" => Sparsifier::Trimmed(Trimmed {
            ratio: get(part, "ratio")?,
            method: trim_method(&get::<String>(part, "method")?)?,
            step: get(part, "step")?,
        }),
        "chunk_topk" => Sparsifier::ChunkTopK(ChunkTopK {
            chunk: get(part, "chunk")?,
            k: get(part, "k")?,
            tile: tile(part)?,
        }),
        "random_k" => Sparsifier::RandomK(RandomK {
            amount: amount(part)?,
            block: get(part, "block")?,
            seed: get(part, "seed")?,
            scaled: get(part, "scaled")?,
        }),
        "custom" => Sparsifier::Custom(Custom { id: tensor_id(&get::<String>(part, "name")?) }),
        other => return Err(unknown("sparsifier", other)),
    })
}

/// The tile, where the columns of the matrix are known; without them it is cut into chunks.
fn tile(part: &Bound<'_, PyDict>) -> PyResult<Option<Tile>> {
    let (sides, width) =
        (get::<Option<[u32; 2]>>(part, "tile")?, get::<Option<u32>>(part, "columns")?);
    Ok(sides.zip(width).map(|([rows, columns], width)| Tile { rows, columns, width }))
}

fn amount(part: &Bound<'_, PyDict>) -> PyResult<Amount> {
    Ok(match get::<Option<u64>>(part, "k")? {
        Some(k) => Amount::Count(k),
        None => Amount::Ratio(get(part, "ratio")?),
    })
}

fn band(part: &Bound<'_, PyDict>) -> PyResult<Option<(f64, f64)>> {
    // A pair is a list once it has been through JSON.
    Ok(get::<Option<[f64; 2]>>(part, "band")?.map(|[low, high]| (low, high)))
}

fn trim_method(name: &str) -> PyResult<TrimMethod> {
    Ok(match name {
        "trim" => TrimMethod::Trim,
        "search" => TrimMethod::Search,
        other => return Err(unknown("method", other)),
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
