//! Quantizers.

use gradwire_core::quantize::{
    Codebook, Exponent, Float8, Float16, Format, Magnitude, Norm, Quantizer, Rounding, SignScale,
    Ternary, TwoMeans, Uniform,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{get, kind, unknown};

pub(super) fn quantizer(part: &Bound<'_, PyDict>) -> PyResult<Quantizer> {
    Ok(match kind(part)?.as_str() {
        "float32" => Quantizer::Float32,
        "bfloat16" => Quantizer::BFloat16,
        "float16" => Quantizer::Float16(Float16 { scaled: get(part, "scaled")? }),
        "uniform" => Quantizer::Uniform(Uniform {
            bits: get(part, "bits")?,
            block: get(part, "block")?,
            norm: norm(&get::<String>(part, "norm")?)?,
            seed: get(part, "seed")?,
        }),
        "sign_scale" => Quantizer::SignScale(SignScale {
            magnitude: magnitude(&get::<String>(part, "scale")?)?,
        }),
        "two_means" => Quantizer::TwoMeans(TwoMeans { column: get(part, "column")? }),
        "ternary" => Quantizer::Ternary(Ternary {
            clip: get::<Option<f64>>(part, "clip")?.map(|clip| clip as f32),
            seed: get(part, "seed")?,
        }),
        "float8" => Quantizer::Float8(Float8 {
            format: match get::<String>(part, "format")?.as_str() {
                "e5m2" => Format::E5M2,
                "e4m3" => Format::E4M3,
                other => return Err(unknown("format", other)),
            },
            rounding: match get::<String>(part, "rounding")?.as_str() {
                "nearest" => Rounding::Nearest,
                "stochastic" => Rounding::Stochastic,
                other => return Err(unknown("rounding", other)),
            },
            block: get(part, "block")?,
            seed: get(part, "seed")?,
        }),
        "codebook" => Quantizer::Codebook(Codebook { bits: get(part, "bits")? }),
        "exponent" => Quantizer::Exponent(Exponent { seed: get(part, "seed")? }),
        other => return Err(unknown("quantizer", other)),
    })
}

fn norm(name: &str) -> PyResult<Norm> {
    match name {
        "l2" => Ok(Norm::L2),
        "max" => Ok(Norm::Max),
        other => Err(unknown("norm", other)),
    }
}

fn magnitude(name: &str) -> PyResult<Magnitude> {
    match name {
        "mean" => Ok(Magnitude::Mean),
        "rms" => Ok(Magnitude::RootMeanSquare),
        "bin-max" | "threshold" => Ok(Magnitude::Selector),
        other => Err(unknown("scale", other)),
    }
}
