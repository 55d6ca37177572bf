//! The parts of a codec, with options drawn: of a part that is not listed here, its examples.

use gradwire_core::fit::{Distribution, Mode};
use gradwire_core::memory::{Estimate, LowPass, Memory, MomentumCorrection, Residual, Storage};
use gradwire_core::quantize::{
    Codebook, Exponent, Float8, Float16, Format, Magnitude, Norm, Quantizer, Rounding, SignScale,
    Ternary, TwoMeans, Uniform,
};
use gradwire_core::sparsify::{
    Amount, BinMax, ChunkTopK, Custom, Gaussian, RandomK, SampledTopK, Sid, Sparsifier, Threshold,
    Tile, TopK, TrimMethod, Trimmed, TwoSided,
};

use super::Numbers;

/// A sort of part, of which all that are registered are drawn.
pub trait Drawn: Copy + 'static {
    /// The names of all.
    const KINDS: &'static [&'static str];

    /// How options are drawn, for tensors of a number of elements. Of others, one of the examples is.
    const DRAWERS: &'static [(&'static str, Drawer<Self>)];

    fn examples(kind: &str) -> Vec<Self>;

    /// A part of a kind.
    fn draw(kind: &str, draw: &mut Numbers<'_>, numel: usize) -> Self {
        match Self::DRAWERS.iter().find(|(name, _)| *name == kind) {
            Some((_, drawer)) => drawer(draw, numel),
            None => draw.pick(&Self::examples(kind)),
        }
    }
}

pub type Drawer<T> = fn(&mut Numbers<'_>, usize) -> T;

macro_rules! drawn {
    ($part:ident, $drawers:ident) => {
        impl Drawn for $part {
            const KINDS: &'static [&'static str] = Self::KINDS;
            const DRAWERS: &'static [(&'static str, Drawer<Self>)] = $drawers;

            fn examples(kind: &str) -> Vec<Self> {
                Self::examples().into_iter().filter(|part| part.kind() == kind).collect()
            }
        }
    };
}

drawn!(Sparsifier, SPARSIFIERS);
drawn!(Memory, MEMORIES);
drawn!(Quantizer, QUANTIZERS);

const SPARSIFIERS: &[(&str, Drawer<Sparsifier>)] = &[
    ("all", |_, _| Sparsifier::All),
    ("threshold", |draw, _| {
        let threshold = draw.pick(&[0.0, 0.01, 0.1, 1.0, 3.0]);
        Sparsifier::Threshold(Threshold { threshold })
    }),
    ("topk", |draw, numel| Sparsifier::TopK(TopK { amount: amount(draw, numel) })),
    ("sid", |draw, _| Sparsifier::Sid(sid(draw))),
    ("sampled_topk", |draw, _| Sparsifier::SampledTopK(sampled(draw))),
    ("bin_max", |draw, _| {
        let bin = draw.pick(&[1, 7, 50, 64, 500, 5000]);
        Sparsifier::BinMax(BinMax { bin, soft: draw.pick(&[1.0, 2.0, 3.5]) })
    }),
    ("two_sided", |draw, _| {
        let proportion = draw.pick(&[1.0, 2.5, 20.0, 100.0]);
        let sample = draw.perhaps(&[1, 100, 1024]);
        Sparsifier::TwoSided(TwoSided { proportion, sample, seed: draw.below(1000) })
    }),
    ("gaussian", |draw, _| {
        let rounds = draw.below(5) as u32;
        let band = draw.perhaps(&[(0.8, 1.25), (0.0, 1.0), (1.0, 3.0)]);
        Sparsifier::Gaussian(Gaussian { ratio: draw.share(), rounds, band })
    }),
    ("trimmed", |draw, _| {
        let method = draw.pick(&[TrimMethod::Trim, TrimMethod::Search]);
        let step = draw.pick(&[0.05, 0.2, 0.5]);
        Sparsifier::Trimmed(Trimmed { ratio: draw.share(), method, step })
    }),
    ("chunk_topk", |draw, numel| {
        let chunk = draw.pick(&[1, 2, 7, 64, 100, 4096, 70_000]);
        let most = if draw.once_in(2) { 2 } else { chunk };
        let k = 1 + draw.below(most.into()) as u32;
        Sparsifier::ChunkTopK(ChunkTopK { chunk, k, tile: tile(draw, numel) })
    }),
    ("random_k", |draw, numel| {
        let (block, scaled) = (draw.once_in(2), draw.once_in(4));
        let amount = amount(draw, numel);
        Sparsifier::RandomK(RandomK { amount, block, seed: draw.below(1000), scaled })
    }),
    ("custom", |draw, _| Sparsifier::Custom(Custom { id: draw.below(9) })),
];

const MEMORIES: &[(&str, Drawer<Memory>)] = &[
    ("none", |_, _| Memory::None),
    ("residual", |draw, _| {
        let decay = draw.pick(&[1.0, 1.0, 0.9, 0.3]);
        Memory::Residual(Residual { decay, ..Residual::PLAIN })
    }),
    ("low_pass", |draw, _| {
        Memory::LowPass(LowPass { beta: draw.pick(&[1.0, 0.1, 0.37]), ..LowPass::PLAIN })
    }),
    ("residual_bfloat16", |draw, _| {
        let decay = draw.pick(&[1.0, 0.9]);
        Memory::Residual(Residual { decay, storage: bfloat16(draw) })
    }),
    ("low_pass_bfloat16", |draw, _| {
        let beta = draw.pick(&[1.0, 0.1, 0.37]);
        Memory::LowPass(LowPass { beta, storage: bfloat16(draw) })
    }),
    ("momentum_correction", |draw, _| {
        let momentum = draw.pick(&[0.0, 0.5, 0.9]);
        let (nesterov, masking) = (draw.once_in(2), draw.once_in(2));
        let clip = draw.perhaps(&[0.1, 1.0, 100.0]);
        Memory::MomentumCorrection(MomentumCorrection { momentum, nesterov, masking, clip })
    }),
    ("estimate", |draw, _| {
        let momentum = draw.pick(&[0.0, 0.5, 0.95]);
        Memory::Estimate(Estimate { momentum, nesterov: draw.once_in(2) })
    }),
];

const QUANTIZERS: &[(&str, Drawer<Quantizer>)] = &[
    ("float32", |_, _| Quantizer::Float32),
    ("bfloat16", |_, _| Quantizer::BFloat16),
    ("float16", |draw, _| Quantizer::Float16(Float16 { scaled: draw.once_in(2) })),
    ("float8", |draw, _| {
        Quantizer::Float8(Float8 {
            format: draw.pick(&[Format::E5M2, Format::E4M3]),
            rounding: draw.pick(&[Rounding::Nearest, Rounding::Stochastic]),
            block: draw.perhaps(&BLOCKS),
            seed: draw.below(1000),
        })
    }),
    ("exponent", |draw, _| Quantizer::Exponent(Exponent { seed: draw.below(1000) })),
    ("codebook", |draw, _| Quantizer::Codebook(Codebook { bits: 1 + draw.below(4) as u8 })),
    ("uniform", |draw, _| {
        Quantizer::Uniform(Uniform {
            bits: 2 + draw.below(7) as u8,
            block: draw.pick(&BLOCKS),
            norm: draw.pick(&[Norm::L2, Norm::Max]),
            seed: draw.below(1000),
        })
    }),
    ("sign_scale", |draw, _| {
        let all = [Magnitude::Mean, Magnitude::RootMeanSquare, Magnitude::Selector];
        Quantizer::SignScale(SignScale { magnitude: draw.pick(&all) })
    }),
    ("two_means", |draw, _| Quantizer::TwoMeans(TwoMeans { column: draw.perhaps(&BLOCKS) })),
    ("ternary", |draw, _| {
        let clip = draw.perhaps(&[0.5, 2.5]);
        Quantizer::Ternary(Ternary { clip, seed: draw.below(1000) })
    }),
];

/// Names that stand for a memory in bfloat16: families of their own.
pub const BFLOAT16: [&str; 2] = ["residual_bfloat16", "low_pass_bfloat16"];

fn bfloat16(draw: &mut Numbers<'_>) -> Storage {
    Storage::BFloat16 { seed: draw.below(1000) }
}

/// Lengths of blocks: below, at and beyond what fits a register or a buffer.
const BLOCKS: [u32; 10] = [1, 3, 16, 17, 32, 64, 100, 512, 3000, 1 << 20];

fn amount(draw: &mut Numbers<'_>, numel: usize) -> Amount {
    if draw.once_in(2) {
        Amount::Ratio(draw.share())
    } else {
        Amount::Count(1 + draw.below(numel as u64 + 2))
    }
}

fn sid(draw: &mut Numbers<'_>) -> Sid {
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

fn sampled(draw: &mut Numbers<'_>) -> SampledTopK {
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
fn tile(draw: &mut Numbers<'_>, numel: usize) -> Option<Tile> {
    let widths: Vec<u32> = [1, 3, 8, 50, 128]
        .into_iter()
        .filter(|&width| numel.is_multiple_of(width as usize))
        .collect();
    let width = draw.perhaps(&widths)?;
    Some(Tile { rows: draw.pick(&[1, 4, 64]), columns: draw.pick(&[1, 5, 64]), width })
}
