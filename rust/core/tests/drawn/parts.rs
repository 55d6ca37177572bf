//! The parts of a codec with options drawn. A new one is a new entry in its list.

use gradwire_core::fit::{Distribution, Mode};
use gradwire_core::memory::{LowPass, Memory, MomentumCorrection, Residual};
use gradwire_core::quantize::{
    Codebook, Exponent, Float8, Float16, Format, Magnitude, Norm, Quantizer, Rounding, SignScale,
    Ternary, TwoMeans, Uniform,
};
use gradwire_core::sparsify::{
    Amount, BinMax, ChunkTopK, Custom, Gaussian, RandomK, SampledTopK, Sid, Sparsifier, Threshold,
    Tile, TopK, TrimMethod, Trimmed, TwoSided,
};

use super::Draw;

/// A part, and how one is drawn for tensors of a number of elements.
#[derive(Debug)]
pub struct Kind<T> {
    pub name: &'static str,
    pub draw: fn(&mut Draw<'_>, usize) -> T,
}

pub const SPARSIFIERS: &[Kind<Sparsifier>] = &[
    Kind { name: "all", draw: |_, _| Sparsifier::All },
    Kind {
        name: "threshold",
        draw: |draw, _| {
            let threshold = draw.pick(&[0.0, 0.01, 0.1, 1.0, 3.0]);
            Sparsifier::Threshold(Threshold { threshold })
        },
    },
    Kind {
        name: "topk",
        draw: |draw, numel| Sparsifier::TopK(TopK { amount: amount(draw, numel) }),
    },
    Kind { name: "sid", draw: |draw, _| Sparsifier::Sid(sid(draw)) },
    Kind { name: "sampled_topk", draw: |draw, _| Sparsifier::SampledTopK(sampled(draw)) },
    Kind {
        name: "bin_max",
        draw: |draw, _| {
            let bin = draw.pick(&[1, 7, 50, 64, 500, 5000]);
            Sparsifier::BinMax(BinMax { bin, soft: draw.pick(&[1.0, 2.0, 3.5]) })
        },
    },
    Kind {
        name: "two_sided",
        draw: |draw, _| {
            let proportion = draw.pick(&[1.0, 2.5, 20.0, 100.0]);
            let sample = draw.perhaps(&[1, 100, 1024]);
            Sparsifier::TwoSided(TwoSided { proportion, sample, seed: draw.below(1000) })
        },
    },
    Kind {
        name: "gaussian",
        draw: |draw, _| {
            let rounds = draw.below(5) as u32;
            let band = draw.perhaps(&[(0.8, 1.25), (0.0, 1.0), (1.0, 3.0)]);
            Sparsifier::Gaussian(Gaussian { ratio: draw.share(), rounds, band })
        },
    },
    Kind {
        name: "trimmed",
        draw: |draw, _| {
            let method = draw.pick(&[TrimMethod::Trim, TrimMethod::Search]);
            let step = draw.pick(&[0.05, 0.2, 0.5]);
            Sparsifier::Trimmed(Trimmed { ratio: draw.share(), method, step })
        },
    },
    Kind {
        name: "chunk_topk",
        draw: |draw, numel| {
            let chunk = draw.pick(&[1, 2, 7, 64, 100, 4096, 70_000]);
            let most = if draw.once_in(2) { 2 } else { chunk };
            let k = 1 + draw.below(most.into()) as u32;
            Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile: tile(draw, numel) })
        },
    },
    Kind {
        name: "random_k",
        draw: |draw, numel| {
            let (block, scaled) = (draw.once_in(2), draw.once_in(4));
            let amount = amount(draw, numel);
            Sparsifier::RandomK(RandomK { amount, block, seed: draw.below(1000), scaled })
        },
    },
    Kind { name: "custom", draw: |draw, _| Sparsifier::Custom(Custom { id: draw.below(9) }) },
];

pub const MEMORIES: &[Kind<Memory>] = &[
    Kind { name: "none", draw: |_, _| Memory::None },
    Kind {
        name: "residual",
        draw: |draw, _| {
            let decay = draw.pick(&[1.0, 1.0, 0.9, 0.3]);
            Memory::Residual(Residual { decay, low_memory: draw.once_in(3) })
        },
    },
    Kind {
        name: "low_pass",
        draw: |draw, _| Memory::LowPass(LowPass { beta: draw.pick(&[1.0, 0.1, 0.37]) }),
    },
    Kind {
        name: "momentum",
        draw: |draw, _| {
            let momentum = draw.pick(&[0.0, 0.5, 0.9]);
            let (nesterov, masking) = (draw.once_in(2), draw.once_in(2));
            let clip = draw.perhaps(&[0.1, 1.0, 100.0]);
            Memory::MomentumCorrection(MomentumCorrection { momentum, nesterov, masking, clip })
        },
    },
];

pub const QUANTIZERS: &[Kind<Quantizer>] = &[
    Kind { name: "float32", draw: |_, _| Quantizer::Float32 },
    Kind { name: "bfloat16", draw: |_, _| Quantizer::BFloat16 },
    Kind {
        name: "float16",
        draw: |draw, _| Quantizer::Float16(Float16 { scaled: draw.once_in(2) }),
    },
    Kind {
        name: "float8",
        draw: |draw, _| {
            Quantizer::Float8(Float8 {
                format: draw.pick(&[Format::E5M2, Format::E4M3]),
                rounding: draw.pick(&[Rounding::Nearest, Rounding::Stochastic]),
                block: draw.perhaps(&BLOCKS),
                seed: draw.below(1000),
            })
        },
    },
    Kind {
        name: "exponent",
        draw: |draw, _| Quantizer::Exponent(Exponent { seed: draw.below(1000) }),
    },
    Kind {
        name: "codebook",
        draw: |draw, _| Quantizer::Codebook(Codebook { bits: 1 + draw.below(4) as u8 }),
    },
    Kind {
        name: "uniform",
        draw: |draw, _| {
            Quantizer::Uniform(Uniform {
                bits: 2 + draw.below(7) as u8,
                block: draw.pick(&BLOCKS),
                norm: draw.pick(&[Norm::L2, Norm::Max]),
                seed: draw.below(1000),
            })
        },
    },
    Kind {
        name: "sign_scale",
        draw: |draw, _| {
            let all = [Magnitude::Mean, Magnitude::RootMeanSquare, Magnitude::Selector];
            Quantizer::SignScale(SignScale { magnitude: draw.pick(&all) })
        },
    },
    Kind {
        name: "two_means",
        draw: |draw, _| Quantizer::TwoMeans(TwoMeans { column: draw.perhaps(&BLOCKS) }),
    },
    Kind {
        name: "ternary",
        draw: |draw, _| {
            let clip = draw.perhaps(&[0.5, 2.5]);
            Quantizer::Ternary(Ternary { clip, seed: draw.below(1000) })
        },
    },
];

/// Lengths of blocks: below, at and beyond what fits a register or a buffer.
const BLOCKS: [u32; 10] = [1, 3, 16, 17, 32, 64, 100, 512, 3000, 1 << 20];

fn amount(draw: &mut Draw<'_>, numel: usize) -> Amount {
    if draw.once_in(2) {
        Amount::Ratio(draw.share())
    } else {
        Amount::Count(1 + draw.below(numel as u64 + 2))
    }
}

fn sid(draw: &mut Draw<'_>) -> Sid {
    let laws = [Distribution::Exponential, Distribution::Gamma, Distribution::GeneralizedPareto];
    Sid {
        ratio: draw.share(),
        distribution: draw.pick(&laws),
        mode: draw.pick(&[
            Mode::Adaptive,
            Mode::Tracking,
            Mode::Paper,
            Mode::Fixed(1),
            Mode::Fixed(3),
        ]),
        first_ratio: draw.pick(&[0.25, 0.1]),
        band: draw.perhaps(&[(0.8, 1.25), (0.8, 1.25), (0.0, 2.0)]),
    }
}

fn sampled(draw: &mut Draw<'_>) -> SampledTopK {
    SampledTopK {
        ratio: draw.share(),
        sample_ratio: draw.pick(&[0.01, 0.1, 1.0]),
        strided: draw.once_in(2),
        resample: draw.once_in(2),
        upper: draw.pick(&[1.3, 2.0]),
        lower: draw.pick(&[0.8, 0.5]),
        seed: draw.below(1000),
    }
}

/// Tiles of a matrix with as many columns as divide the number of elements.
fn tile(draw: &mut Draw<'_>, numel: usize) -> Option<Tile> {
    let widths: Vec<u32> = [1, 3, 8, 50, 128]
        .into_iter()
        .filter(|&width| numel.is_multiple_of(width as usize))
        .collect();
    let width = draw.perhaps(&widths)?;
    Some(Tile { rows: draw.pick(&[1, 4, 64]), columns: draw.pick(&[1, 5, 64]), width })
}
