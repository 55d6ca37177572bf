//! Memories in bfloat16, rounded by chance: against their definition, an entry at a time.

use half::bf16;

use super::*;
use crate::rng::Key;
use crate::simd::dither;

const ROUNDED: Storage = Storage::BFloat16 { seed: 5 };
const TENSOR: u64 = 17;
const STREAM: u64 = 3;

fn residual(decay: f32) -> Memory {
    Memory::Residual(Residual { decay, storage: ROUNDED })
}

fn filtered(beta: f32) -> Memory {
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
    of(top_ratio(0.03), Quantizer::BFloat16, memory)
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
    let memories = [residual(1.0), residual(0.9), filtered(0.3), filtered(1.0)];
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
fn a_rest_beyond_the_largest_bfloat16_is_that() {
    let none = Sparsifier::Threshold(Threshold { threshold: f32::MAX });
    for memory in [residual(1.0), filtered(0.999)] {
        let codec = exact(none, memory);
        let mut state = new_state(&codec, 200);
        let x: Vec<_> = [3.4e38, -3.4e38].into_iter().cycle().take(200).collect();
        encode(&codec, &x, &mut state);
        let after = stored(&state);
        assert!(after.iter().all(|v| v.to_f32().abs() == bf16::MAX.to_f32()));
        assert!(x.iter().zip(&after).all(|(x, v)| x.signum() == v.to_f32().signum()));
    }
}

#[test]
fn values_of_other_types_are_converted_and_other_states_refused() {
    let (codec, plain) = (sparse(residual(0.9)), sparse(FEEDBACK));
    let mut state = new_state(&codec, 1000);
    encode(&codec, &gradient(1000, 1), &mut state);
    // To float32 exactly, and to bfloat16 as near as there is one.
    let mut wide = plain.init_state(1000).unwrap();
    wide.set_stored_residual(state.stored_residual().unwrap()).unwrap();
    assert_eq!(wide.residual().unwrap(), floats(state.stored_residual()));
    let mut narrow = new_state(&codec, 4);
    narrow.set_residual(&[1.0 + 0.003, 1.0 + 0.005, f32::MAX, -f32::MAX]).unwrap();
    let max = bf16::MAX.to_f32();
    assert_eq!(floats(narrow.stored_residual()), [1.0, 1.007_812_5, max, -max]);
    assert!(matches!(narrow.set_residual(&[f32::NAN; 4]), Err(Error::NonFinite { .. })));
    assert!(matches!(narrow.set_residual(&[0.0; 3]), Err(Error::Argument { .. })));
    assert!(attempt(&codec, Input::F32(&[0.0; 1000]), &mut wide, None).0.is_err());
}
