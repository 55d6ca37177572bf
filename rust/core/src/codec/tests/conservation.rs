//! What is sent and what is kept add up, on every level and thread count.

use super::*;
use crate::reference::kept;

/// Each codec and length runs on every level and with every thread count, but not with all pairs of
/// them: which level has how many threads shifts from one codec and length to the next, so that all
/// pairs occur. For example (scalar, 1 thread), (AVX2, 2), (AVX-512, 3) is followed by (scalar, 2),
/// (AVX2, 3), (AVX-512, 1).
#[test]
fn nothing_is_lost_and_bytes_agree_on_every_level_and_thread_count() {
    let levels = available_levels();
    let mut shift = 0;
    for n in [0, 1, 2, 63, 130, 5000, 300_000] {
        let steps: Vec<Vec<f32>> = (0..3).map(|s| gradient(n, n as u64 + s)).collect();
        for codec in [codecs(FEEDBACK), scaled_codecs(FEEDBACK)].concat() {
            if n > 5000 && is_plain(codec.quantizer()) && codec.quantizer() != Quantizer::BFloat16 {
                continue;
            }
            let mut runs = Vec::new();
            for run in 0..levels.len().max(3) {
                let kernels = Kernels::of(levels[run % levels.len()]).unwrap();
                let mut workspace = Workspace::with(kernels, 1 + (run + shift) % 3);
                runs.push(conserves(&codec, &steps, &mut workspace));
            }
            assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{codec:?} {n}");
            shift += 1;
        }
    }
}

/// Encodes the steps in a row, checks that decoded + residual = gradient + old residual, exactly, but
/// that what is below the smallest normal number is zero, and gives the frames and the bits of the last residual.
fn conserves(
    codec: &Codec,
    steps: &[Vec<f32>],
    workspace: &mut Workspace,
) -> (Vec<Vec<u8>>, Vec<u32>) {
    let n = steps[0].len();
    let mut state = codec.init_state(n).unwrap();
    let mut frames = Vec::new();
    for x in steps {
        let before = state.residual().unwrap().to_vec();
        let mut out = Vec::new();
        codec.encode_into(Input::F32(x), &mut state, None, workspace, &mut out).unwrap();
        let (sent, after) = (decode(&out, n), state.residual().unwrap());
        for i in 0..n {
            let sum = kept(x[i] + before[i]);
            if codec.quantizer() == Quantizer::Float32 {
                assert_eq!(sent[i] + after[i], sum, "{codec:?} {i}");
                assert!(sent[i] == 0.0 || after[i] == 0.0);
            }
            // Otherwise to float32's own rounding of the difference.
            assert_eq!(after[i], kept(sum - sent[i]), "{codec:?} {i}");
        }
        frames.push(out);
    }
    assert_eq!(state.step(), steps.len() as u64);
    (frames, state.residual().unwrap().iter().map(|r| r.to_bits()).collect())
}

#[test]
fn frames_are_trimmed_to_a_limit_and_the_rest_is_kept() {
    let n = 50_000;
    let x: Vec<f32> = gradient(n, 9).into_iter().map(kept).collect();
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.05) });
    for quantizer in plain_quantizers() {
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
                assert_eq!(state.residual().unwrap()[i], kept(x[i] - sent[i]));
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
            assert!(matches!(result, Err(Error::LimitTooSmall { .. })));
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
fn decay_shrinks_what_is_remembered() {
    let memory = Memory::Residual(Residual { decay: 0.5, ..Residual::PLAIN });
    let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Count(1) });
    let codec = Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
    let mut state = codec.init_state(3).unwrap();
    encode(&codec, &[4.0, 2.0, -1.0], &mut state);
    assert_eq!(state.residual().unwrap(), [0.0, 2.0, -1.0]);
    encode(&codec, &[0.0, 0.0, 3.0], &mut state);
    assert_eq!(state.residual().unwrap(), [0.0, 1.0, 0.0]);
}

#[test]
fn fused_feedback_gives_the_bytes_of_adding_first() {
    let n = 200_000;
    // AdaComp looks at the new gradient beside the sum.
    let of_sums = |sparsifier: &Sparsifier| !matches!(sparsifier, Sparsifier::BinMax(_));
    for sparsifier in sparsifiers().into_iter().filter(of_sums).step_by(one_in()) {
        let make = |memory| {
            Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap()
        };
        let (fused, plain) = (make(FEEDBACK), make(Memory::None));
        let (mut state, mut other) = (fused.init_state(n).unwrap(), plain.init_state(n).unwrap());
        for step in 0..4 {
            let x = gradient(n, 70 + step);
            let residual = state.residual().unwrap();
            let sum: Vec<f32> = x.iter().zip(residual).map(|(x, r)| kept(x + r)).collect();
            let expected = encode(&plain, &sum, &mut other);
            assert_eq!(encode(&fused, &x, &mut state), expected, "{sparsifier:?}");
        }
    }
}

#[test]
fn tensors_that_are_streamed_past_the_caches_conserve_too() {
    let n = (1 << 21) + 77;
    let steps: Vec<Vec<f32>> = (0..2).map(|s| gradient(n, 5 + s)).collect();
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.001) });
    for sparsifier in [top, sid(0.01, Distribution::Gamma), Sparsifier::All] {
        let codec =
            Codec::new(sparsifier, Quantizer::BFloat16, FEEDBACK, IndexCoding::Auto).unwrap();
        let mut frames = Vec::new();
        for level in available_levels() {
            for threads in [1, 3] {
                let mut workspace = Workspace::with(Kernels::of(level).unwrap(), threads);
                frames.push(conserves(&codec, &steps, &mut workspace));
            }
        }
        assert!(frames.windows(2).all(|pair| pair[0] == pair[1]), "{codec:?}");
    }
}
