//! Programs that flush subnormal numbers, or round otherwise, get the same frames.

use super::*;
use crate::scan::CHUNK;
use crate::simd::float_mode::testing::in_hostile_mode;

/// Two steps of frames, decoded tensors and residuals, on so many threads.
fn run(codec: &Codec, steps: &[Vec<f32>], threads: usize) -> Vec<(Vec<u8>, Vec<u32>, Vec<u32>)> {
    let n = steps[0].len();
    let mut state = codec.init_state(n).unwrap();
    let mut workspace = Workspace::with(Kernels::current(), threads);
    let mut ran = Vec::new();
    for x in steps {
        let mut frame = Vec::new();
        codec.encode_into(Input::F32(x), &mut state, None, &mut workspace, &mut frame).unwrap();
        let mut sum = vec![f32::from_bits(1); n];
        let parsed = Frame::parse(&frame, None).unwrap();
        parsed.decode_add(&mut sum, 0.5, &mut Scratch::default()).unwrap();
        let mut decoded = decode(&frame, n);
        decoded.extend(sum);
        let residual = state.residual().unwrap_or_default();
        ran.push((frame, bits(&decoded), bits(residual)));
    }
    ran
}

/// All entries are subnormal, or become so when they are multiplied by something.
fn tiny(n: usize, seed: u64) -> Vec<f32> {
    gradient(n, seed).iter().map(|v| (v % 1.0) * 1.2e-38).collect()
}

#[test]
fn frames_and_residuals_are_those_of_the_standard_mode() {
    let steps: Vec<_> = (0..2).map(|seed| tiny(4000, seed)).collect();
    for memory in [FEEDBACK, Memory::None] {
        for codec in codecs(memory).into_iter().chain(scaled_codecs(memory)) {
            let expected = run(&codec, &steps, 1);
            assert_eq!(in_hostile_mode(|| run(&codec, &steps, 1)), expected, "{codec:?}");
        }
    }
}

#[test]
fn threads_do_not_matter_in_any_mode() {
    let n = 6 * CHUNK + 77;
    let steps: Vec<_> = (0..2).map(|seed| tiny(n, seed)).collect();
    let threshold = Sparsifier::Threshold(Threshold { threshold: 1e-39 });
    for sparsifier in [threshold, Sparsifier::All, sid(0.01, Distribution::Gamma)] {
        let quantizer = Quantizer::Float32;
        let codec = Codec::new(sparsifier, quantizer, FEEDBACK, IndexCoding::Auto).unwrap();
        let expected = run(&codec, &steps, 1);
        for threads in [1, 2, 3] {
            assert_eq!(in_hostile_mode(|| run(&codec, &steps, threads)), expected);
        }
    }
}

#[test]
fn states_are_saved_and_loaded_to_the_last_bit() {
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.01) });
    let codec = Codec::new(sparsifier, Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(1000).unwrap();
    encode(&codec, &tiny(1000, 1), &mut state);
    let expected = state.scalars();
    assert!(expected.iter().any(|&(_, value)| value > 0.0 && value < f64::from(f32::MIN_POSITIVE)));
    let mut other = codec.init_state(1000).unwrap();
    let saved = in_hostile_mode(|| {
        let saved = state.scalars();
        other.load_scalars(&saved).unwrap();
        saved
    });
    assert_eq!((other.scalars(), saved), (expected.clone(), expected));
}

#[test]
fn errors_leave_the_mode_as_it_was() {
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.1) });
    let codec = Codec::new(sparsifier, Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(100).unwrap();
    // That checks the mode.
    in_hostile_mode(|| {
        let x = [f32::NAN; 100];
        let (mut workspace, mut out) = (Workspace::default(), Vec::new());
        codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out).unwrap_err();
    });
}
