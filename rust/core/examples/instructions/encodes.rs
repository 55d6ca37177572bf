//! Whole encodes and decodes, a step that the state is used to.

use gradwire_core::Input;
use gradwire_core::codec::{Codec, Workspace};
use gradwire_core::fit::Mode;
use gradwire_core::frame::{Frame, Scratch};
use gradwire_core::memory::{
    AdamCorrection, LowPass, Memory, MomentumCorrection, Residual, Storage,
};
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{
    Exponent, Float8, Float16, Format, Magnitude, Norm, Quantizer, Rounding, SignScale, Ternary,
    TwoMeans, Uniform,
};
use gradwire_core::sparsify::{
    Amount, BinMax, ChunkTopK, Gaussian, RandomK, SampledTopK, Sid, Sparsifier, TopK, Trimmed,
    TwoSided,
};
use half::{bf16, f16};

use crate::tensors::laplace;
use crate::{Prepare, Works};

/// Long enough for the work that does not grow with the tensor to vanish.
const NUMEL: usize = 1 << 20;

const KEEP: Memory = Memory::Residual(Residual::PLAIN);
const LOW_MEMORY: Memory =
    Memory::Residual(Residual { decay: 1.0, storage: Storage::BFloat16 { seed: 0 } });

/// How elements of a type are made, and given to an encode.
type Elements<T> = (fn(f32) -> T, fn(&[T]) -> Input<'_>);

fn encode(sparsifier: Sparsifier, quantizer: Quantizer, memory: Memory) -> Prepare {
    encode_of((|x| x, |x| Input::F32(x)), sparsifier, quantizer, memory)
}

/// A step of a codec on a tensor that its state has seen before.
fn encode_of<T: 'static>(
    (element, input): Elements<T>,
    sparsifier: Sparsifier,
    quantizer: Quantizer,
    memory: Memory,
) -> Prepare {
    Box::new(move || {
        let codec = Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto)?;
        let mut state = codec.init_state(NUMEL)?;
        let (mut workspace, mut out) = (Workspace::default(), Vec::new());
        let gradient = |seed| laplace(NUMEL, seed).into_iter().map(element).collect();
        let gradients: [Vec<T>; 2] = [0, 1].map(gradient);
        let mut turn = 0;
        let work = move || {
            let input = input(&gradients[turn % 2]);
            turn += 1;
            codec.encode_into(input, &mut state, None, &mut workspace, &mut out).map(|_| ())
        };
        Ok((NUMEL, Box::new(work)))
    })
}

/// Every sparsifier with exact values and a residual.
fn sparsifiers() -> Works {
    let mut all = Works::new();
    for ratio in [0.001, 0.01, 0.1] {
        let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(ratio) });
        let sid = |mode| Sparsifier::Sid(Sid { mode, ..Sid::new(ratio) });
        for (name, sparsifier, memory) in [
            ("topk", top, KEEP),
            ("topk, low memory", top, LOW_MEMORY),
            ("sidco", sid(Mode::Adaptive), KEEP),
            ("sidco tracking", sid(Mode::Tracking), KEEP),
            ("sidco, 2 stages", sid(Mode::Fixed(2)), KEEP),
        ] {
            all.push((format!("{name}, {ratio}"), encode(sparsifier, Quantizer::Float32, memory)));
        }
        all.push((format!("decode and add, {ratio}"), decode(top, Quantizer::Float32, true)));
    }
    let amount = Amount::Ratio(0.01);
    let top = Sparsifier::TopK(TopK { amount });
    let chunks = ChunkTopK { chunk: 4096, k: 41, tile: None };
    let random = RandomK { amount, block: false, seed: 1, scaled: false };
    let correction =
        MomentumCorrection { momentum: 0.9, nesterov: false, masking: true, clip: None };
    let adam = AdamCorrection { beta2: 0.999, eps: 1e-8, storage: Storage::Float32 };
    let named = [
        ("sampled top-k, 0.01", Sparsifier::SampledTopK(SampledTopK::new(0.01))),
        ("gaussian, 0.01", Sparsifier::Gaussian(Gaussian::new(0.01))),
        ("trimmed, 0.01", Sparsifier::Trimmed(Trimmed::new(0.01))),
        ("two-sided, 1 of 32", Sparsifier::TwoSided(TwoSided::new(32.0))),
        ("bin-max of 500", Sparsifier::BinMax(BinMax { bin: 500, soft: 2.0 })),
        ("chunk top-k, 41 of 4096", Sparsifier::ChunkTopK(chunks)),
        ("random-k, 0.01", Sparsifier::RandomK(random)),
    ];
    for (name, sparsifier) in named {
        all.push((name.into(), encode(sparsifier, Quantizer::Float32, KEEP)));
    }
    let mut chosen = vec![Sparsifier::All, top, Sparsifier::Sid(Sid::new(0.01))];
    chosen.extend(named.map(|(_, sparsifier)| sparsifier));
    let others = Sparsifier::examples_besides(&chosen).into_iter().filter(|s| !s.is_given());
    for (at, sparsifier) in others.enumerate() {
        let name = format!("{}, example {at}", sparsifier.kind());
        all.push((name, encode(sparsifier, Quantizer::Float32, KEEP)));
    }
    let named = [
        ("topk, low pass, 0.01", Memory::LowPass(LowPass { beta: 0.1, ..LowPass::PLAIN })),
        ("topk, momentum correction, 0.01", Memory::MomentumCorrection(correction)),
        ("topk, Adam correction, 0.01", Memory::AdamCorrection(adam)),
    ];
    for (name, memory) in named {
        all.push((name.into(), encode(top, Quantizer::Float32, memory)));
    }
    let mut chosen = vec![KEEP, Memory::None];
    chosen.extend(named.map(|(_, memory)| memory));
    for (at, memory) in Memory::examples_besides(&chosen).into_iter().enumerate() {
        let name = format!("topk, {}, example {at}", memory.kind());
        all.push((name, encode(top, Quantizer::Float32, memory)));
    }
    all
}

/// Every quantizer on all entries, without a residual and with one, and its frames decoded.
fn quantizers() -> Works {
    let uniform = |bits| Quantizer::Uniform(Uniform { bits, block: 512, norm: Norm::Max, seed: 1 });
    let mut all = Works::new();
    let named = [
        ("bf16", Quantizer::BFloat16),
        ("f16", Quantizer::Float16(Float16 { scaled: false })),
        ("uniform, 2 bits", uniform(2)),
        ("uniform, 4 bits", uniform(4)),
        ("uniform, 8 bits", uniform(8)),
        ("ternary", Quantizer::Ternary(Ternary { clip: None, seed: 1 })),
        ("sign and mean", Quantizer::SignScale(SignScale { magnitude: Magnitude::Mean })),
        ("two means, columns of 1024", Quantizer::TwoMeans(TwoMeans { column: Some(1024) })),
        ("exponent", Quantizer::Exponent(Exponent { seed: 1 })),
    ];
    let mut chosen = vec![Quantizer::Float32, e4m3(Rounding::Nearest, 32)];
    chosen.extend(named.iter().map(|(_, quantizer)| *quantizer));
    let others = Quantizer::examples_besides(&chosen).into_iter().enumerate();
    let others = others.map(|(at, q)| (format!("{}, example {at}", q.kind()), q));
    let named = named.into_iter().map(|(name, quantizer)| (name.to_owned(), quantizer));
    for (name, quantizer) in named.chain(others) {
        all.push((format!("dense {name}"), encode(Sparsifier::All, quantizer, Memory::None)));
        let residual = format!("dense {name} with residual");
        all.push((residual, encode(Sparsifier::All, quantizer, KEEP)));
        all.push((format!("decode {name}"), decode(Sparsifier::All, quantizer, false)));
    }
    all
}

/// Reads a frame: to a tensor, or to be added to one.
fn decode(sparsifier: Sparsifier, quantizer: Quantizer, adds: bool) -> Prepare {
    Box::new(move || {
        let codec = Codec::new(sparsifier, quantizer, Memory::None, IndexCoding::Auto)?;
        let mut state = codec.init_state(NUMEL)?;
        let (mut workspace, mut bytes) = (Workspace::default(), Vec::new());
        let mut out = laplace(NUMEL, 1);
        codec.encode_into(Input::F32(&out), &mut state, None, &mut workspace, &mut bytes)?;
        let mut scratch = Scratch::default();
        let work = move || {
            let frame = Frame::parse(&bytes, None)?;
            if adds {
                frame.decode_add(&mut out, 0.5, &mut scratch)
            } else {
                frame.decode_into(&mut out, &mut scratch)
            }
        };
        Ok((NUMEL, Box::new(work)))
    })
}

fn e4m3(rounding: Rounding, block: u32) -> Quantizer {
    Quantizer::Float8(Float8 { format: Format::E4M3, rounding, block: Some(block), seed: 1 })
}

/// Quantizers whose scales belong to blocks of a few entries, and the frames that they make.
fn blocks() -> Works {
    let uniform = |norm, block| Quantizer::Uniform(Uniform { bits: 4, block, norm, seed: 1 });
    let mut all = Works::new();
    for block in [32, 64, 128, 256] {
        for (name, quantizer) in [
            ("e4m3", e4m3(Rounding::Nearest, block)),
            ("e4m3 by chance", e4m3(Rounding::Stochastic, block)),
            ("uniform, 4 bits, max", uniform(Norm::Max, block)),
            ("uniform, 4 bits, l2", uniform(Norm::L2, block)),
            ("two means", Quantizer::TwoMeans(TwoMeans { column: Some(block) })),
        ] {
            let name = format!("{name}, blocks of {block}");
            let dense = encode(Sparsifier::All, quantizer, Memory::None);
            all.push((format!("dense {name}"), dense));
            let dense = encode(Sparsifier::All, quantizer, KEEP);
            all.push((format!("dense {name} with residual"), dense));
            all.push((format!("decode {name}"), decode(Sparsifier::All, quantizer, false)));
            all.push((format!("decode and add {name}"), decode(Sparsifier::All, quantizer, true)));
        }
    }
    all
}

/// Exact top-k of tensors of another type than float32, and a dense frame.
fn of_type<T: 'static>(name: &str, how: Elements<T>) -> Works {
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.001) });
    let dense = encode_of(how, Sparsifier::All, Quantizer::BFloat16, Memory::None);
    vec![
        (format!("topk of {name}, 0.001"), encode_of(how, top, Quantizer::Float32, KEEP)),
        (format!("dense bf16 of {name}"), dense),
    ]
}

fn dtypes() -> Works {
    let mut all = of_type("bfloat16", (bf16::from_f32, |x| Input::BF16(x)));
    all.extend(of_type("float16", (f16::from_f32, |x| Input::F16(x))));
    all.extend(of_type("float64", (f64::from, |x| Input::F64(x))));
    all
}

pub fn all() -> Works {
    sparsifiers().into_iter().chain(quantizers()).chain(blocks()).chain(dtypes()).collect()
}
