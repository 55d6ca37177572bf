//! Laws of every codec, against the naive oracles, on every level and thread count.

mod adam;
mod chunks;
mod conservation;
mod estimated;
mod float_mode;
mod flush;
mod given;
mod memories;
mod outside;
mod picked;
mod published;
mod random;
mod rounded;
mod selection;
mod splits;
mod state;
mod trim;

use super::*;
use crate::Dtype;
use crate::fit::{Distribution, Mode};
use crate::frame::{Frame, Scratch};
use crate::memory::Residual;
use crate::quantize::{Float16, SignScale, TwoMeans};
use crate::reference;
use crate::simd::{Kernels, available_levels, testing};
use crate::sparsify::{
    Amount, BinMax, ChunkTopK, Custom, Gaussian, RandomK, SampledTopK, Sid, Threshold, TopK,
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

fn compose(sparsifiers: &[Sparsifier], quantizers: &[Quantizer], memory: Memory) -> Vec<Codec> {
    let pairs = sparsifiers.iter().flat_map(|&s| quantizers.iter().map(move |&q| (s, q)));
    pairs
        .filter(|&(sparsifier, quantizer)| go_together(sparsifier, quantizer, memory))
        .map(|(sparsifier, quantizer)| {
            Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto).unwrap()
        })
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
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.03) });
    let threshold = Sparsifier::Threshold(Threshold { threshold: 0.0 });
    compose(&[Sparsifier::All, threshold, top], &scaled_quantizers(), memory)
}

const FEEDBACK: Memory = Memory::Residual(Residual::PLAIN);

fn encode(codec: &Codec, x: &[f32], state: &mut State) -> (Vec<u8>, Encoded) {
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    let encoded = codec.encode_into(Input::F32(x), state, None, &mut workspace, &mut out).unwrap();
    assert!(out.len() <= codec.max_encoded_len(x.len()), "{codec:?} {}", x.len());
    (out, encoded)
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
