//! What was left is sent whole, and can be taken back.

use super::*;
use crate::memory::{LowPass, MomentumCorrection};

fn all_memories() -> Vec<Memory> {
    let correction =
        MomentumCorrection { momentum: 0.9, nesterov: false, masking: true, clip: None };
    vec![
        FEEDBACK,
        Memory::LowPass(LowPass { beta: 0.5, ..LowPass::PLAIN }),
        Memory::MomentumCorrection(correction),
        Memory::MomentumCorrection(MomentumCorrection { masking: false, ..correction }),
    ]
}

#[test]
fn a_flush_sends_the_residual_exactly_and_leaves_zeros() {
    for n in [0, 1, 1000] {
        for memory in all_memories() {
            let sparsifier = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.01) });
            let codec =
                Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap();
            let mut state = codec.init_state(n).unwrap();
            encode(&codec, &gradient(n, 1), &mut state);
            encode(&codec, &gradient(n, 2), &mut state);
            let (left, moved) =
                (state.residual().unwrap().to_vec(), state.momentum().map(<[f32]>::to_vec));
            let mut frame = Vec::new();
            let encoded = codec.flush_into(&mut state, &mut frame).unwrap();
            assert_eq!((encoded.count, state.step()), (n as u64, 3));
            assert_eq!(decode(&frame, n), left);
            assert_eq!(state.residual().unwrap(), vec![0.0; n]);
            match memory {
                Memory::MomentumCorrection(MomentumCorrection { masking: true, .. }) => {
                    assert_eq!(state.momentum().unwrap(), vec![0.0; n]);
                }
                _ => assert_eq!(state.momentum(), moved.as_deref()),
            }
            state.rollback().unwrap();
            assert_eq!((state.residual().unwrap(), state.step()), (&left[..], 2));
            assert_eq!(state.momentum(), moved.as_deref());
            encode(&codec, &gradient(n, 3), &mut state);
        }
    }
}

#[test]
fn without_a_memory_there_is_nothing_to_flush() {
    let codec = codecs(Memory::None)[0];
    let mut state = codec.init_state(10).unwrap();
    let mut frame = vec![1];
    let error = codec.flush_into(&mut state, &mut frame).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }) && frame.is_empty());
}
