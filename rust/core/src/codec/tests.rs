//! Laws of every codec, against the naive oracles, on every level and thread count.

use super::*;
use crate::Dtype;
use crate::fit::{Distribution, Mode};
use crate::frame::{Frame, Scratch};
use crate::reference;
use crate::simd::{Kernels, available_levels, testing};
use crate::sparsify::{Amount, Sid};

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

fn sparsifiers() -> Vec<Sparsifier> {
    let mut all = vec![Sparsifier::All];
    all.extend([0.0, 0.1, 1e9].map(|threshold| Sparsifier::Threshold { threshold }));
    all.extend([1e-4, 0.01, 0.3, 1.0].map(|r| Sparsifier::TopK { amount: Amount::Ratio(r) }));
    all.extend([1, 5, 1 << 40].map(|k| Sparsifier::TopK { amount: Amount::Count(k) }));
    for law in [Distribution::Exponential, Distribution::Gamma, Distribution::GeneralizedPareto] {
        all.extend([1e-3, 0.01, 0.1, 0.5].map(|ratio| sid(ratio, law)));
    }
    let paper = Sid { mode: Mode::Paper, band: None, ..Sid::new(0.01) };
    all.extend([Sparsifier::Sid(paper), Sparsifier::Sid(Sid { mode: Mode::Fixed(3), ..paper })]);
    all
}

const QUANTIZERS: [Quantizer; 4] = [
    Quantizer::Float32,
    Quantizer::BFloat16,
    Quantizer::Float16 { scaled: true },
    Quantizer::Float16 { scaled: false },
];

fn codecs(memory: Memory) -> Vec<Codec> {
    let mut codecs = Vec::new();
    for sparsifier in sparsifiers() {
        for quantizer in QUANTIZERS {
            codecs.push(Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto).unwrap());
        }
    }
    codecs
}

const FEEDBACK: Memory = Memory::Residual { decay: 1.0 };

fn encode(codec: &Codec, x: &[f32], state: &mut State) -> (Vec<u8>, Encoded) {
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    let encoded = codec.encode_into(Input::F32(x), state, None, &mut workspace, &mut out).unwrap();
    assert!(out.len() <= codec.max_encoded_len(x.len()), "{codec:?} {}", x.len());
    (out, encoded)
}

fn decode(frame: &[u8], numel: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; numel];
    let frame = Frame::parse(frame, Some(numel as u64)).unwrap();
    frame.decode_into(&mut out, &mut Scratch::default()).unwrap();
    out
}

fn positions(frame: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    Frame::parse(frame, None).unwrap().indices_into(&mut out).unwrap();
    out
}

#[test]
fn nothing_is_lost_and_bytes_agree_on_every_level_and_thread_count() {
    for n in [0, 1, 2, 63, 130, 5000, 300_000] {
        let steps: Vec<Vec<f32>> = (0..3).map(|s| gradient(n, n as u64 + s)).collect();
        for codec in codecs(FEEDBACK) {
            if n > 5000 && codec.quantizer() != Quantizer::BFloat16 {
                continue;
            }
            let mut frames: Vec<Vec<Vec<u8>>> = Vec::new();
            for level in available_levels() {
                for threads in [1, 2, 3] {
                    let kernels = Kernels::of(level).unwrap();
                    let mut workspace = Workspace::with(kernels, threads);
                    frames.push(conserves(&codec, &steps, &mut workspace));
                }
            }
            assert!(frames.windows(2).all(|pair| pair[0] == pair[1]), "{codec:?} {n}");
        }
    }
}

/// Encodes the steps in a row, checks that decoded + residual = gradient + old residual, exactly,
/// and gives the frames.
fn conserves(codec: &Codec, steps: &[Vec<f32>], workspace: &mut Workspace) -> Vec<Vec<u8>> {
    let n = steps[0].len();
    let mut state = codec.init_state(n).unwrap();
    let mut frames = Vec::new();
    for x in steps {
        let before = state.residual().unwrap().to_vec();
        let mut out = Vec::new();
        codec.encode_into(Input::F32(x), &mut state, None, workspace, &mut out).unwrap();
        let (sent, after) = (decode(&out, n), state.residual().unwrap());
        for i in 0..n {
            let sum = x[i] + before[i];
            if codec.quantizer() == Quantizer::Float32 {
                assert_eq!(sent[i] + after[i], sum, "{codec:?} {i}");
                assert!(sent[i] == 0.0 || after[i] == 0.0);
            }
            // Otherwise to float32's own rounding of the difference.
            assert_eq!(after[i], sum - sent[i], "{codec:?} {i}");
        }
        frames.push(out);
    }
    assert_eq!(state.step(), steps.len() as u64);
    frames
}

#[test]
fn without_memory_the_tensor_itself_is_selected_from() {
    let x = gradient(20_000, 3);
    for codec in codecs(Memory::None) {
        let mut state = codec.init_state(x.len()).unwrap();
        assert!(state.residual().is_none());
        let (first, _) = encode(&codec, &x, &mut state);
        let sent = decode(&first, x.len());
        let error = x.iter().zip(&sent).filter(|(_, s)| **s != 0.0).map(|(x, s)| (x - s).abs());
        let worst = error.fold(0.0f32, f32::max);
        let bound = if codec.quantizer() == Quantizer::Float32 { 0.0 } else { 1.0 / 256.0 };
        assert!(worst <= bound, "{codec:?} {worst}");
    }
}

#[test]
fn top_k_is_exact_whatever_the_bound_was() {
    for n in [1, 100, 5000, 200_000] {
        for k in [1, 7, n / 100 + 1, n / 3 + 1, n] {
            let amount = Amount::Count(k as u64);
            let codec = Codec::new(
                Sparsifier::TopK { amount },
                Quantizer::Float32,
                Memory::None,
                IndexCoding::Auto,
            )
            .unwrap();
            let mut state = codec.init_state(n).unwrap();
            // Each law after the other: the bound of one is wrong by far for the next.
            let mut laws = vec![gradient(n, 1), vec![0.5; n], vec![0.0; n], gradient(n, 2)];
            laws.push(gradient(n, 3).iter().map(|v| v * 1000.0).collect());
            laws.push(gradient(n, 4).iter().map(|v| v * 1e-3).collect());
            laws.push((0..n).map(|i| if i % 3 == 0 { 1.0 } else { 0.0 }).collect());
            let mut spike = vec![0.0; n];
            spike[n / 2] = f32::MIN_POSITIVE / 8.0;
            laws.push(spike);
            for (law, x) in laws.iter().enumerate() {
                let (frame, encoded) = encode(&codec, x, &mut state);
                assert_eq!(positions(&frame), reference::largest(x, k), "law {law}, {k} of {n}");
                assert_eq!(encoded.target, Some(k.min(n) as u64));
            }
        }
    }
}

#[test]
fn a_threshold_selects_what_is_strictly_above() {
    let x = gradient(10_000, 5);
    for threshold in [0.0, 0.01, 0.25, 3.0] {
        let sparsifier = Sparsifier::Threshold { threshold };
        let codec =
            Codec::new(sparsifier, Quantizer::Float32, Memory::None, IndexCoding::Auto).unwrap();
        let (frame, _) = encode(&codec, &x, &mut codec.init_state(x.len()).unwrap());
        assert_eq!(positions(&frame), reference::above(&x, threshold));
    }
}

#[test]
fn the_band_holds_on_whatever_comes() {
    let n = 100_000;
    let mut laws = vec![gradient(n, 1), vec![0.5; n], gradient(n, 2)];
    laws.push(gradient(n, 3).iter().map(|v| v * 1000.0).collect());
    laws.push(gradient(n, 3).iter().map(|v| v * 1e-3).collect());
    laws.push(gradient(n, 4).iter().map(|v| v.powi(9)).collect());
    laws.push((0..n).map(|i| if i % 2 == 0 { 1.0 } else { 0.0 }).collect());
    for law in [Distribution::Exponential, Distribution::Gamma, Distribution::GeneralizedPareto] {
        for ratio in [1e-4, 1e-3, 0.01, 0.1] {
            let codec =
                Codec::new(sid(ratio, law), Quantizer::Float32, Memory::None, IndexCoding::Auto)
                    .unwrap();
            let mut state = codec.init_state(n).unwrap();
            for x in laws.iter().cycle().take(3 * laws.len()) {
                let (_, encoded) = encode(&codec, x, &mut state);
                let k = (n as f64 * ratio) as u64;
                let achieved = encoded.count as f64 / k as f64;
                assert!((0.8..=1.25).contains(&achieved), "{law:?} {ratio} {achieved}");
            }
        }
    }
}

#[test]
fn tracked_bounds_do_not_change_what_sid_selects() {
    let n = 200_000;
    for law in [Distribution::Exponential, Distribution::Gamma, Distribution::GeneralizedPareto] {
        let codec =
            Codec::new(sid(0.005, law), Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap();
        let (mut tracked, mut fresh) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
        for step in 0..6 {
            let x = gradient(n, 50 + step);
            fresh.tracker.bound = [None, Some(0.0), Some(1e-3), Some(10.0)][step as usize % 4];
            assert_eq!(encode(&codec, &x, &mut tracked), encode(&codec, &x, &mut fresh));
        }
    }
}

#[test]
fn bad_input_leaves_the_state_as_it_was() {
    let n = 5000;
    for memory in [FEEDBACK, Memory::None] {
        for codec in codecs(memory) {
            let mut state = codec.init_state(n).unwrap();
            encode(&codec, &gradient(n, 1), &mut state);
            let before = (state.residual().map(<[f32]>::to_vec), state.scalars());
            let (mut out, mut workspace) = (vec![1], Workspace::default());
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = gradient(n, 2);
                (x[4000], x[77]) = (bad, bad);
                let result =
                    codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out);
                assert_eq!(result, Err(Error::NonFinite { count: 2, first: 77 }), "{codec:?}");
                assert_eq!((state.residual().map(<[f32]>::to_vec), state.scalars()), before);
                assert!(out.is_empty());
                assert!(state.rollback().is_err());
            }
        }
    }
}

#[test]
fn rollback_undoes_the_last_encode_exactly() {
    let n = 10_000;
    for codec in codecs(FEEDBACK) {
        let mut state = codec.init_state(n).unwrap();
        assert!(state.rollback().is_err());
        encode(&codec, &gradient(n, 1), &mut state);
        let before = (state.residual().unwrap().to_vec(), state.scalars());
        let (first, _) = encode(&codec, &gradient(n, 2), &mut state);
        let after = (state.residual().unwrap().to_vec(), state.scalars());
        state.rollback().unwrap();
        assert_eq!((state.residual().unwrap().to_vec(), state.scalars()), before);
        assert!(state.rollback().is_err());
        let (again, _) = encode(&codec, &gradient(n, 2), &mut state);
        assert_eq!(again, first);
        assert_eq!((state.residual().unwrap().to_vec(), state.scalars()), after);
    }
}

#[test]
fn a_saved_state_goes_on_bit_for_bit() {
    let n = 30_000;
    for codec in codecs(FEEDBACK) {
        let mut state = codec.init_state(n).unwrap();
        for step in 0..4 {
            encode(&codec, &gradient(n, step), &mut state);
        }
        let mut restored = codec.init_state(n).unwrap();
        restored.set_residual(state.residual().unwrap()).unwrap();
        restored.load_scalars(&state.scalars()).unwrap();
        for step in 4..8 {
            let x = gradient(n, step);
            assert_eq!(encode(&codec, &x, &mut state), encode(&codec, &x, &mut restored));
        }
        assert_eq!(state.scalars(), restored.scalars());
    }
}

#[test]
fn frames_are_trimmed_to_a_limit_and_the_rest_is_kept() {
    let n = 50_000;
    let x = gradient(n, 9);
    let sparsifier = Sparsifier::TopK { amount: Amount::Ratio(0.05) };
    for quantizer in QUANTIZERS {
        let codec = Codec::new(sparsifier, quantizer, FEEDBACK, IndexCoding::Auto).unwrap();
        let (whole, _) = encode(&codec, &x, &mut codec.init_state(n).unwrap());
        for limit in [whole.len(), whole.len() - 1, whole.len() / 2, 200, 56] {
            let mut state = codec.init_state(n).unwrap();
            let (mut out, mut workspace) = (Vec::new(), Workspace::default());
            let encoded = codec
                .encode_into(Input::F32(&x), &mut state, Some(limit), &mut workspace, &mut out)
                .unwrap();
            assert!(out.len() <= limit);
            assert!(out.len() + 60 >= limit, "{} bytes of {limit} used", out.len());
            assert_eq!(positions(&out), reference::largest(&x, encoded.count as usize));
            assert_eq!(encoded.count + encoded.trimmed, 2500);
            let sent = decode(&out, n);
            for i in 0..n {
                assert_eq!(state.residual().unwrap()[i], x[i] - sent[i]);
            }
        }
        let mut state = codec.init_state(n).unwrap();
        let (mut out, mut workspace) = (Vec::new(), Workspace::default());
        for limit in [0, 47] {
            let result = codec.encode_into(
                Input::F32(&x),
                &mut state,
                Some(limit),
                &mut workspace,
                &mut out,
            );
            assert!(matches!(result, Err(Error::Argument { .. })));
            assert_eq!(state.residual().unwrap(), vec![0.0; n]);
        }
    }
}

#[test]
fn other_dtypes_are_read_as_float32_and_named_in_the_frame() {
    let n = 150_000;
    let exact: Vec<half::bf16> = gradient(n, 1).iter().map(|&v| half::bf16::from_f32(v)).collect();
    let narrow: Vec<half::f16> = gradient(n, 2).iter().map(|&v| half::f16::from_f32(v)).collect();
    let wide: Vec<f64> = gradient(n, 3).iter().map(|&v| f64::from(v) * (1.0 + 1e-10)).collect();
    let as_f32 = [
        exact.iter().map(|v| v.to_f32()).collect::<Vec<_>>(),
        narrow.iter().map(|v| v.to_f32()).collect(),
        wide.iter().map(|&v| v as f32).collect(),
    ];
    let inputs = [Input::BF16(&exact), Input::F16(&narrow), Input::F64(&wide)];
    for memory in [FEEDBACK, Memory::None] {
        for sparsifier in [Sparsifier::All, sid(0.01, Distribution::Gamma)] {
            let codec =
                Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap();
            for (input, plain) in inputs.iter().zip(&as_f32) {
                let (mut a, mut b) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
                let (mut out, mut workspace) = (Vec::new(), Workspace::default());
                codec.encode_into(*input, &mut a, None, &mut workspace, &mut out).unwrap();
                let (expected, _) = encode(&codec, plain, &mut b);
                assert_eq!(decode(&out, n), decode(&expected, n));
                assert_eq!(a.residual(), b.residual());
                let header = *Frame::parse(&out, None).unwrap().header();
                assert_eq!(header.dtype, input.dtype());
                assert_eq!(Frame::parse(&expected, None).unwrap().header().dtype, Dtype::F32);
            }
        }
    }
}

#[test]
fn a_float64_beyond_float32_is_not_finite() {
    let x = [1.0f64, 1e39];
    let sparsifier = Sparsifier::TopK { amount: Amount::Count(1) };
    let codec = Codec::new(sparsifier, Quantizer::Float32, FEEDBACK, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(2).unwrap();
    let result = codec.encode_into(
        Input::F64(&x),
        &mut state,
        None,
        &mut Workspace::default(),
        &mut Vec::new(),
    );
    assert_eq!(result, Err(Error::NonFinite { count: 1, first: 1 }));
}

#[test]
fn decay_shrinks_what_is_remembered() {
    let memory = Memory::Residual { decay: 0.5 };
    let sparsifier = Sparsifier::TopK { amount: Amount::Count(1) };
    let codec = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(3).unwrap();
    encode(&codec, &[4.0, 2.0, -1.0], &mut state);
    assert_eq!(state.residual().unwrap(), [0.0, 2.0, -1.0]);
    encode(&codec, &[0.0, 0.0, 3.0], &mut state);
    assert_eq!(state.residual().unwrap(), [0.0, 1.0, 0.0]);
}

#[test]
fn a_state_of_another_shape_or_memory_is_refused_and_another_ratio_is_not() {
    let top = |ratio| Sparsifier::TopK { amount: Amount::Ratio(ratio) };
    let make = |sparsifier, memory| {
        Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).unwrap()
    };
    let x = gradient(1000, 1);
    let mut state = make(top(0.1), FEEDBACK).init_state(1000).unwrap();
    let mut run = |codec: &Codec, x: &[f32]| {
        codec.encode_into(
            Input::F32(x),
            &mut state,
            None,
            &mut Workspace::default(),
            &mut Vec::new(),
        )
    };
    assert!(matches!(run(&make(top(0.1), FEEDBACK), &x[..999]), Err(Error::Argument { .. })));
    assert!(matches!(run(&make(top(0.1), Memory::None), &x), Err(Error::Argument { .. })));
    assert_eq!(run(&make(top(0.1), FEEDBACK), &x).unwrap().count, 100);
    assert_eq!(run(&make(top(0.01), FEEDBACK), &x).unwrap().count, 10);
    assert!(run(&make(sid(0.01, Distribution::Gamma), FEEDBACK), &x).unwrap().count >= 8);
}

#[test]
fn meaningless_parts_are_refused() {
    let refused = |sparsifier, memory| {
        let result = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto);
        assert!(matches!(result, Err(Error::Argument { .. })));
    };
    for ratio in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
        refused(Sparsifier::TopK { amount: Amount::Ratio(ratio) }, Memory::None);
        refused(Sparsifier::Sid(Sid::new(ratio)), Memory::None);
    }
    refused(Sparsifier::TopK { amount: Amount::Count(0) }, Memory::None);
    for threshold in [-1.0, f32::NAN, f32::INFINITY] {
        refused(Sparsifier::Threshold { threshold }, Memory::None);
    }
    for decay in [0.0, 1.5, f32::NAN] {
        refused(Sparsifier::All, Memory::Residual { decay });
    }
    let base = Sid::new(0.01);
    refused(Sparsifier::Sid(Sid { first_ratio: 1.0, ..base }), Memory::None);
    refused(Sparsifier::Sid(Sid { band: Some((1.1, 1.2)), ..base }), Memory::None);
    refused(Sparsifier::Sid(Sid { band: Some((0.8, f64::NAN)), ..base }), Memory::None);
    refused(Sparsifier::Sid(Sid { mode: Mode::Fixed(0), ..base }), Memory::None);
}
