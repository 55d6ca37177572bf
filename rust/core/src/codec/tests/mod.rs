//! Laws of every codec, against the naive oracles, on every level and thread count.

mod adam;
mod chunks;
mod conservation;
mod estimated;
mod float_mode;
mod flush;
mod given;
mod laws;
mod memories;
mod momenta;
mod outside;
mod picked;
mod published;
mod random;
mod rounded;
mod selection;
mod trim;

use super::*;
use crate::Dtype;
use crate::fit::{Distribution, Mode};
use crate::frame::{Frame, Scratch};
use crate::memory::{AdamCorrection, LowPass, MomentumCorrection, Residual, Storage};
use crate::quantize::{Float16, Magnitude, Norm, SignScale, Ternary, TwoMeans, Uniform};
use crate::reference;
use crate::scan::CHUNK;
use crate::simd::{Kernels, available_levels, testing};
use crate::sparsify::{
    Amount, BinMax, ChunkTopK, Custom, Gaussian, RandomK, SampledTopK, Sid, Threshold, Tile, TopK,
    TrimMethod, Trimmed, TwoSided,
};

thread_local! {
    /// How often the last frame of a selection was written, to fit its limit.
    pub(super) static TRIES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A bounded tensor: bell-shaped around zero, with zeros of both signs, ties and subnormals.
fn gradient(len: usize, seed: u64) -> Vec<f32> {
    let (a, b) = (testing::tensor(len, seed), testing::tensor(len, seed + 1_000_003));
    a.iter()
        .zip(&b)
        .map(|(a, b)| if a.abs() > 1.0 { 0.25 * b.signum() } else { a * b.clamp(-2.0, 2.0) })
        .collect()
}

fn sid(ratio: f64, distribution: Distribution) -> Sparsifier {
    Sparsifier::Sid(Sid { distribution, ..Sid::new(ratio) })
}

/// Those that select by themselves, and send values as they are.
fn sparsifiers() -> Vec<Sparsifier> {
    let scales = |random: RandomK| random.scaled;
    let plain = |sparsifier: &Sparsifier| {
        !sparsifier.is_given() && !matches!(*sparsifier, Sparsifier::RandomK(r) if scales(r))
    };
    Sparsifier::examples().into_iter().filter(plain).collect()
}

/// Those that are as near to a value as its own bits allow.
fn plain_quantizers() -> Vec<Quantizer> {
    Quantizer::examples().into_iter().filter(|quantizer| is_plain(*quantizer)).collect()
}

/// Those of a few bits.
fn scaled_quantizers() -> Vec<Quantizer> {
    Quantizer::examples().into_iter().filter(|quantizer| !is_plain(*quantizer)).collect()
}

fn is_plain(quantizer: Quantizer) -> bool {
    quantizer.coding(1, 1.0).code_bits() > 8
}

/// Whether a codec may be composed of them; see the tests of what is refused.
fn go_together(sparsifier: Sparsifier, quantizer: Quantizer, memory: Memory) -> bool {
    let always_masked = sparsifier.is_dense() && memory.facts().masks;
    !always_masked && (sparsifier.tells_magnitude() || !quantizer.needs_magnitude())
}

fn of(sparsifier: Sparsifier, quantizer: Quantizer, memory: Memory) -> Codec {
    Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto).unwrap()
}

/// Values as they are.
fn exact(sparsifier: Sparsifier, memory: Memory) -> Codec {
    of(sparsifier, Quantizer::Float32, memory)
}

/// The largest so many.
fn top(count: u64) -> Sparsifier {
    Sparsifier::TopK(TopK { amount: Amount::Count(count) })
}

/// The largest so many of each entry.
fn top_ratio(ratio: f64) -> Sparsifier {
    Sparsifier::TopK(TopK { amount: Amount::Ratio(ratio) })
}

fn compose(sparsifiers: &[Sparsifier], quantizers: &[Quantizer], memory: Memory) -> Vec<Codec> {
    let pairs = sparsifiers.iter().flat_map(|&s| quantizers.iter().map(move |&q| (s, q)));
    pairs
        .filter(|&(sparsifier, quantizer)| go_together(sparsifier, quantizer, memory))
        .map(|(sparsifier, quantizer)| of(sparsifier, quantizer, memory))
        .step_by(one_in())
        .collect()
}

/// One of so many parts or codecs is taken: all of them at the best level of this processor, and fewer
/// below it and in an emulator. What depends on the level is tested in the kernels, at every length,
/// and in the digest, of every family.
fn one_in() -> usize {
    let best = available_levels().last() == Some(&Kernels::current().level());
    if best && std::env::var_os("GRADWIRE_EMULATED").is_none() { 1 } else { 7 }
}

fn codecs(memory: Memory) -> Vec<Codec> {
    compose(&sparsifiers(), &plain_quantizers(), memory)
}

fn scaled_codecs(memory: Memory) -> Vec<Codec> {
    let threshold = Sparsifier::Threshold(Threshold { threshold: 0.0 });
    let bins = Sparsifier::BinMax(BinMax { bin: 50, soft: 2.0 });
    let all = [Sparsifier::All, threshold, bins, top_ratio(0.03)];
    compose(&all, &scaled_quantizers(), memory)
}

const FEEDBACK: Memory = Memory::Residual(Residual::PLAIN);

const MOMENTUM: MomentumCorrection =
    MomentumCorrection { momentum: 0.9, nesterov: false, masking: true, clip: None };
const ADAM: AdamCorrection = AdamCorrection { beta2: 0.999, eps: 1e-8, storage: Storage::Float32 };

fn low_pass(beta: f32) -> Memory {
    Memory::LowPass(LowPass { beta, ..LowPass::PLAIN })
}

/// Encodes with scratch memory of its own: the result, and what was written.
fn attempt(
    codec: &Codec,
    input: Input<'_>,
    state: &mut State,
    limit: Option<usize>,
) -> (Result<Encoded>, Vec<u8>) {
    let (mut out, mut workspace) = (vec![1], Workspace::default());
    let result = codec.encode_into(input, state, limit, &mut workspace, &mut out);
    assert!(result.is_ok() || out.is_empty());
    (result, out)
}

fn encode(codec: &Codec, x: &[f32], state: &mut State) -> (Vec<u8>, Encoded) {
    let (encoded, out) = attempt(codec, Input::F32(x), state, None);
    assert!(out.len() <= codec.max_encoded_len(x.len()), "{codec:?} {}", x.len());
    (out, encoded.unwrap())
}

/// Encodes these steps in a row: the frames, and the state that they leave.
fn run(codec: &Codec, steps: &[Vec<f32>], workspace: &mut Workspace) -> (Vec<Vec<u8>>, Contents) {
    let mut state = codec.init_state(steps[0].len()).unwrap();
    let frame = |x: &Vec<f32>| {
        let mut out = Vec::new();
        codec.encode_into(Input::F32(x), &mut state, None, workspace, &mut out).unwrap();
        out
    };
    let frames = steps.iter().map(frame).collect();
    (frames, contents(&state))
}

/// What every level and each of these numbers of threads give alike. Not all pairs of them run: which
/// level has how many threads shifts from one codec to the next, so that all pairs occur. For example
/// (scalar, 1 thread), (AVX2, 2), (AVX-512, 3) is followed by (scalar, 2), (AVX2, 3), (AVX-512, 1).
fn on_every_level<T: PartialEq>(
    codec: &Codec,
    threads: [usize; 3],
    shift: usize,
    mut of: impl FnMut(&mut Workspace) -> T,
) -> T {
    let levels = available_levels();
    let mut runs = (0..levels.len().max(3)).map(|at| {
        let kernels = Kernels::of(levels[at % levels.len()]).unwrap();
        let mut workspace = Workspace::with(kernels, threads[(at + shift) % 3]);
        workspace.scanner.grain = CHUNK;
        of(&mut workspace)
    });
    let first = runs.next().unwrap();
    assert!(runs.all(|run| run == first), "{codec:?}");
    first
}

/// Everything in a state that an encode may change: residual, moment, scalars.
type Contents = (Vec<u32>, Vec<u32>, Vec<(String, f64)>);

fn contents(state: &State) -> Contents {
    let moment = state.momentum().map(Input::F32).or(state.stored_second_moment());
    (bits(&floats(state.stored_residual())), bits(&floats(moment)), state.scalars())
}

fn floats(values: Option<Input<'_>>) -> Vec<f32> {
    match values {
        Some(Input::F32(values)) => values.to_vec(),
        Some(Input::BF16(values)) => values.iter().map(|v| v.to_f32()).collect(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// The state as a checkpoint brings it back.
fn saved(codec: &Codec, state: &State) -> State {
    let mut restored = codec.init_state(state.numel()).unwrap();
    if let Some(residual) = state.stored_residual() {
        restored.set_stored_residual(residual).unwrap();
    }
    if let Some(momentum) = state.momentum() {
        restored.set_momentum(momentum).unwrap();
    }
    if let Some(second) = state.stored_second_moment() {
        restored.set_stored_second_moment(second).unwrap();
    }
    if let Some(estimate) = state.estimate() {
        restored.set_estimate(estimate).unwrap();
    }
    restored.load_scalars(&state.scalars()).unwrap();
    restored
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What a frame decodes to, which is the same on every level.
fn decode(frame: &[u8], numel: usize) -> Vec<f32> {
    let frame = Frame::parse(frame, Some(numel as u64)).unwrap();
    let mut decoded = available_levels().into_iter().map(|level| {
        let mut out = vec![f32::NAN; numel];
        let frame = frame.with(Kernels::of(level).unwrap());
        frame.decode_into(&mut out, &mut Scratch::default()).unwrap();
        out
    });
    let first = decoded.next().unwrap();
    assert!(decoded.all(|other| bits(&other) == bits(&first)), "every level decodes the same");
    first
}

fn positions(frame: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    Frame::parse(frame, None).unwrap().indices_into(&mut out).unwrap();
    out
}
