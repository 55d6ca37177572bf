//! What is sent and what is kept add up, on every level and thread count.

use super::*;
use crate::reference::kept;

#[test]
fn nothing_is_lost_and_bytes_agree_on_every_level_and_thread_count() {
    let mut shift = 0;
    for n in [0, 1, 2, 63, 130, 5000, 300_000] {
        let mut steps: Vec<Vec<f32>> = (0..3).map(|s| gradient(n, n as u64 + s)).collect();
        if n <= 5000 {
            let spike = (0..n).map(|i| if i == n / 2 { f32::from_bits(3) } else { 0.0 });
            steps.extend([vec![-0.5; n], spike.collect()]);
        }
        for codec in [codecs(FEEDBACK), scaled_codecs(FEEDBACK)].concat() {
            // A long tensor is for each part of a codec, not for each composition.
            let some = codec.quantizer() == Quantizer::BFloat16 || codec.sparsifier().is_dense();
            if n > 5000 && !some {
                continue;
            }
            shift += 1;
            on_every_level(&codec, [1, 2, 3], shift, |space| conserves(&codec, &steps, space));
        }
    }
}

/// Encodes the steps in a row, checks that decoded + residual = gradient + old residual, exactly, but
/// that what is below the smallest normal number is zero, and gives the frames and the last state.
fn conserves(
    codec: &Codec,
    steps: &[Vec<f32>],
    workspace: &mut Workspace,
) -> (Vec<Vec<u8>>, Contents) {
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
    (frames, contents(&state))
}

#[test]
fn frames_are_trimmed_to_a_limit_and_the_rest_is_kept() {
    let n = 50_000;
    let x: Vec<f32> = gradient(n, 9).into_iter().map(kept).collect();
    for codec in compose(&[top_ratio(0.05)], &Quantizer::examples(), FEEDBACK) {
        let (whole, _) = encode(&codec, &x, &mut codec.init_state(n).unwrap());
        for limit in [whole.len(), whole.len() - 1, whole.len() / 2, 200, 56] {
            let mut state = codec.init_state(n).unwrap();
            let (encoded, out) = attempt(&codec, Input::F32(&x), &mut state, Some(limit));
            let encoded = encoded.unwrap();
            assert!(out.len() <= limit);
            let used = out.len() + 60 >= limit || !is_plain(codec.quantizer());
            assert!(used, "{} bytes of {limit} used, {codec:?}", out.len());
            assert_eq!(positions(&out), reference::largest(&x, encoded.count as usize));
            assert_eq!(encoded.count + encoded.trimmed, 2500);
            let (sent, left) = (decode(&out, n), state.residual().unwrap());
            assert!((0..n).all(|i| left[i] == kept(x[i] - sent[i])), "{codec:?}");
        }
    }
}

#[test]
fn decay_shrinks_what_is_remembered() {
    let memory = Memory::Residual(Residual { decay: 0.5, ..Residual::PLAIN });
    let codec = exact(top(1), memory);
    let mut state = codec.init_state(3).unwrap();
    encode(&codec, &[4.0, 2.0, -1.0], &mut state);
    assert_eq!(state.residual().unwrap(), [0.0, 2.0, -1.0]);
    encode(&codec, &[0.0, 0.0, 3.0], &mut state);
    assert_eq!(state.residual().unwrap(), [0.0, 1.0, 0.0]);
}

#[test]
fn tensors_that_are_streamed_past_the_caches_conserve_too() {
    let n = (1 << 21) + 77;
    let steps: Vec<Vec<f32>> = (0..2).map(|s| gradient(n, 5 + s)).collect();
    let all = [top_ratio(0.001), sid(0.01, Distribution::Gamma), Sparsifier::All];
    for (shift, sparsifier) in all.into_iter().enumerate() {
        let codec = of(sparsifier, Quantizer::BFloat16, FEEDBACK);
        on_every_level(&codec, [1, 2, 3], shift, |space| conserves(&codec, &steps, space));
    }
}
