//! Memories in bfloat16, rounded by chance: against their definition, an entry at a time.

use half::bf16;

use super::*;
use crate::memory::{LowPass, Storage};
use crate::rng::Key;
use crate::simd::dither;

const ROUNDED: Storage = Storage::BFloat16 { seed: 5 };
const TENSOR: u64 = 17;
const STREAM: u64 = 3;

fn residual(decay: f32) -> Memory {
    Memory::Residual(Residual { decay, storage: ROUNDED })
}

fn low_pass(beta: f32) -> Memory {
    Memory::LowPass(LowPass { beta, storage: ROUNDED })
}

fn stored(state: &State) -> Vec<bf16> {
    match state.stored_residual() {
        Some(Input::BF16(values)) => values.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// A codec that leaves something.
fn sparse(memory: Memory) -> Codec {
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.03) });
    Codec::new(top, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap()
}

fn new_state(codec: &Codec, numel: usize) -> State {
    codec.init_state(numel).unwrap().identified(TENSOR, STREAM)
}

/// The key of a step, as the documentation has it.
fn key(step: u64) -> Key {
    Key::new(5, TENSOR, step, !STREAM ^ (1 << 63))
}

/// What a memory keeps in float32, by the definition.
fn kept(memory: Memory, old: f32, x: f32, sent: Option<f32>) -> f32 {
    let (decay, beta) = match memory {
        Memory::Residual(Residual { decay, .. }) => (decay, None),
        Memory::LowPass(LowPass { beta, .. }) => (1.0, Some(beta).filter(|&beta| beta < 1.0)),
        _ => unreachable!(),
    };
    let normal = reference::kept;
    let left = normal(normal(x + decay * old) - sent.unwrap_or(0.0));
    match (beta, sent) {
        (None, _) => left,
        (Some(beta), None) => normal(old + beta * x),
        (Some(beta), Some(_)) => normal((1.0 - beta) * old + beta * left),
    }
}

#[test]
fn every_codec_keeps_its_rest_to_the_rounding_of_its_key() {
    let lengths = if cfg!(miri) { vec![0, 33] } else { vec![0, 1, 31, 4097] };
    let memories = [residual(1.0), residual(0.9), low_pass(0.3), low_pass(1.0)];
    for (memory, n) in memories.into_iter().flat_map(|m| lengths.iter().map(move |&n| (m, n))) {
        for codec in codecs(memory).into_iter().chain(scaled_codecs(memory)) {
            let mut state = new_state(&codec, n);
            for step in 0..3 {
                let (x, before) = (gradient(n, step), stored(&state));
                let (frame, _) = encode(&codec, &x, &mut state);
                let (sent, after) = (decode(&frame, n), stored(&state));
                let mut at = vec![None; n];
                for i in positions(&frame) {
                    at[i as usize] = Some(sent[i as usize]);
                }
                for i in 0..n {
                    let left = kept(memory, before[i].to_f32(), x[i], at[i]);
                    let expected = dither::at(left, key(step), i as u32);
                    assert_eq!(after[i].to_bits(), expected.to_bits(), "{codec:?} {i} {left}");
                    // Decoded and kept are what there was, to a unit in the last place.
                    let unit = (left.abs() / 128.0).max(1.2e-40);
                    assert!((after[i].to_f32() - left).abs() <= unit, "{codec:?} {left}");
                }
            }
        }
    }
}

#[test]
fn tiny_gradients_add_up_where_rounding_to_the_nearest_would_lose_them() {
    let (n, steps) = (512, 4096);
    let memory = residual(1.0);
    let none = Sparsifier::Threshold(Threshold { threshold: 100.0 });
    let codec = Codec::new(none, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
    let mut state = new_state(&codec, n);
    state.set_residual(&vec![1.0; n]).unwrap();
    let tiny = 2.0_f32.powi(-12);
    assert_eq!(bf16::from_f32(1.0 + tiny), bf16::ONE, "the nearest is where it was");
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    for _ in 0..steps {
        let x = vec![tiny; n];
        codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out).unwrap();
    }
    let sum: f64 = stored(&state).iter().map(|v| f64::from(v.to_f32())).sum();
    // Each step adds a unit of 2^-7 with a chance of 1/32; all are independent, so that the mean over
    // the entries has a standard deviation of sqrt(steps * unit * tiny / n), nearly.
    let deviation = (f64::from(steps) * 2.0_f64.powi(-19) / n as f64).sqrt();
    let mean = sum / n as f64;
    assert!((mean - 2.0).abs() < 4.5 * deviation, "{mean} {deviation}");
}

#[test]
fn over_seeds_and_steps_the_mean_is_exact_and_ranks_round_on_their_own() {
    let (n, runs) = (256, 400);
    // Subnormal numbers would be zero.
    let normal = |v: f32| if v.is_subnormal() { 0.3 } else { v };
    let x: Vec<f32> = gradient(n, 7).into_iter().map(normal).collect();
    let none = Sparsifier::Threshold(Threshold { threshold: 100.0 });
    let mut sums = vec![0.0_f64; n];
    let mut first = Vec::new();
    for run in 0..runs {
        let storage = Storage::BFloat16 { seed: run / 4 };
        let memory = Memory::Residual(Residual { storage, ..Residual::PLAIN });
        let codec = Codec::new(none, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        let mut state = codec.init_state(n).unwrap().identified(run % 2, run / 2 % 2);
        encode(&codec, &x, &mut state);
        let after = stored(&state);
        sums.iter_mut().zip(&after).for_each(|(sum, v)| *sum += f64::from(v.to_f32()));
        assert!(!first.contains(&after), "of another seed, tensor or rank");
        first.push(after);
    }
    let mut squares = 0.0;
    for (sum, &x) in sums.iter().zip(&x) {
        let low = f64::from(f32::from_bits(x.to_bits() & 0xFFFF_0000));
        let (share, unit) = (f64::from(x.to_bits() & 0xFFFF) / 65536.0, {
            let high = f64::from(f32::from_bits((x.to_bits() & 0xFFFF_0000) + 0x1_0000));
            high - low
        });
        let deviation = (share * (1.0 - share) * runs as f64).sqrt() * unit.abs();
        let error = sum - runs as f64 * f64::from(x);
        if deviation > 0.0 {
            assert!(error.abs() < 5.0 * deviation, "{x} {error}");
            squares += (error / deviation).powi(2);
        } else {
            assert!(error == 0.0);
        }
    }
    // As many squares of standard normal numbers as there are entries, of variance 2.
    assert!((squares / n as f64 - 1.0).abs() < 0.6, "{squares}");
}

#[test]
fn rolling_back_and_encoding_again_gives_the_same_bytes() {
    for memory in [residual(0.9), low_pass(0.3)] {
        for codec in codecs(memory) {
            let mut state = new_state(&codec, 2000);
            encode(&codec, &gradient(2000, 1), &mut state);
            let before = (stored(&state), state.scalars());
            let frame = encode(&codec, &gradient(2000, 2), &mut state).0;
            let after = (stored(&state), state.scalars());
            state.rollback().unwrap();
            assert_eq!((stored(&state), state.scalars()), before);
            assert_eq!(encode(&codec, &gradient(2000, 2), &mut state).0, frame);
            assert_eq!((stored(&state), state.scalars()), after);
        }
    }
}

#[test]
fn what_is_not_finite_changes_nothing() {
    for memory in [residual(0.9), residual(0.9), low_pass(0.3)] {
        for codec in codecs(memory).into_iter().chain(scaled_codecs(memory)) {
            let mut state = new_state(&codec, 300);
            encode(&codec, &gradient(300, 1), &mut state);
            let before = (stored(&state), state.scalars());
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = gradient(300, 2);
                (x[17], x[200]) = (bad, bad);
                let (mut out, mut workspace) = (Vec::new(), Workspace::default());
                let result =
                    codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut out);
                assert_eq!(result, Err(Error::NonFinite { count: 2, first: 17 }), "{codec:?}");
                assert_eq!((stored(&state), state.scalars()), before);
            }
        }
    }
}

#[test]
fn a_rest_beyond_the_largest_bfloat16_is_that() {
    let none = Sparsifier::Threshold(Threshold { threshold: f32::MAX });
    for memory in [residual(1.0), residual(1.0), low_pass(0.999)] {
        let codec = Codec::new(none, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        let mut state = new_state(&codec, 200);
        let x: Vec<_> = [3.4e38, -3.4e38].into_iter().cycle().take(200).collect();
        encode(&codec, &x, &mut state);
        let after = stored(&state);
        assert!(after.iter().all(|v| v.to_f32().abs() == bf16::MAX.to_f32()));
        assert!(x.iter().zip(&after).all(|(x, v)| x.signum() == v.to_f32().signum()));
    }
}

#[test]
fn a_saved_state_goes_on_bit_for_bit_and_other_types_are_converted() {
    let codec = sparse(residual(0.9));
    let plain = sparse(FEEDBACK);
    let mut state = new_state(&codec, 1000);
    encode(&codec, &gradient(1000, 1), &mut state);
    let mut restored = new_state(&codec, 1000);
    restored.set_stored_residual(state.stored_residual().unwrap()).unwrap();
    restored.load_scalars(&state.scalars()).unwrap();
    let frames = [&mut state, &mut restored].map(|s| encode(&codec, &gradient(1000, 2), s).0);
    assert_eq!(frames[0], frames[1]);
    assert_eq!(stored(&state), stored(&restored));
    // To float32 exactly, and to bfloat16 as near as there is one.
    let mut wide = plain.init_state(1000).unwrap();
    wide.set_stored_residual(state.stored_residual().unwrap()).unwrap();
    let exact: Vec<_> = stored(&state).iter().map(|v| v.to_f32()).collect();
    assert_eq!(wide.residual().unwrap(), exact);
    let mut narrow = new_state(&codec, 4);
    narrow.set_residual(&[1.0 + 0.003, 1.0 + 0.005, f32::MAX, -f32::MAX]).unwrap();
    let max = bf16::MAX.to_f32();
    let values: Vec<_> = stored(&narrow).iter().map(|v| v.to_f32()).collect();
    assert_eq!(values, [1.0, 1.007_812_5, max, -max]);
    assert!(matches!(narrow.set_residual(&[f32::NAN; 4]), Err(Error::NonFinite { .. })));
    assert!(matches!(narrow.set_residual(&[0.0; 3]), Err(Error::Argument { .. })));
    assert!(
        codec
            .encode_into(
                Input::F32(&[0.0; 1000]),
                &mut wide,
                None,
                &mut Workspace::default(),
                &mut Vec::new()
            )
            .is_err()
    );
}

#[test]
fn a_norm_and_a_flush_are_those_of_the_values() {
    for memory in [residual(1.0), residual(1.0), low_pass(0.3)] {
        let codec = sparse(memory);
        let mut state = new_state(&codec, 5000);
        encode(&codec, &gradient(5000, 1), &mut state);
        let values: Vec<_> = stored(&state).iter().map(|v| v.to_f32()).collect();
        let norm = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        assert!((state.residual_norm().unwrap() - norm).abs() < 1e-12 * norm);
        let mut frame = Vec::new();
        codec.flush_into(&mut state, &mut frame).unwrap();
        assert_eq!(bits(&decode(&frame, 5000)), bits(&values));
        assert!(stored(&state).iter().all(|v| v.to_bits() == 0));
    }
}
