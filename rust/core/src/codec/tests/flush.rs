//! What was left is sent whole, and can be taken back.

use super::*;
use crate::memory::Keeps;

#[test]
fn a_flush_sends_the_residual_exactly_and_leaves_zeros() {
    let remembers = |memory: &Memory| *memory != Memory::None;
    for memory in Memory::examples().into_iter().filter(remembers) {
        for n in [0, 1, 1000] {
            let codec = of(top_ratio(0.01), Quantizer::BFloat16, memory);
            let mut state = codec.init_state(n).unwrap();
            if memory.facts().keeps == Keeps::Estimate {
                assert!(codec.flush_into(&mut state, &mut Vec::new()).is_err());
                continue;
            }
            encode(&codec, &gradient(n, 1), &mut state);
            encode(&codec, &gradient(n, 2), &mut state);
            let before = contents(&state);
            let mut frame = Vec::new();
            let encoded = codec.flush_into(&mut state, &mut frame).unwrap();
            assert_eq!((encoded.count, state.step()), (n as u64, 3));
            assert_eq!(bits(&decode(&frame, n)), before.0);
            let (residual, moment, _) = contents(&state);
            assert_eq!(residual, vec![0; n]);
            // No gradient has come in; a momentum that is masked has all been sent.
            let masks = memory.facts().masks;
            assert_eq!(moment, if masks { vec![0; before.1.len()] } else { before.1.clone() });
            state.rollback().unwrap();
            assert_eq!(contents(&state), before);
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
