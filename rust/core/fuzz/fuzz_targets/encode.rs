//! Any codec, tensors, limits and positions: all levels write the same frame, no longer than promised;
//! a rollback restores the state, and an error leaves it as it was.
#![no_main]

use gradwire_core::simd::{Kernels, available_levels};
use gradwire_fuzz::{Bytes, Run, Step, codec};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = &mut Bytes(data);
    let numel = bytes.numel();
    let Some(codec) = codec(bytes, numel) else { return };
    let levels = available_levels().into_iter().filter_map(Kernels::of);
    let mut runs: Vec<_> = levels.map(|kernels| Run::new(codec, numel, kernels)).collect();
    while !bytes.0.is_empty() {
        let (step, undo) = (Step::draw(bytes, &codec, numel), bytes.byte() % 4 == 0);
        let before = runs[0].seen();
        let results: Vec<_> = runs.iter_mut().map(|run| run.checked(&step)).collect();
        assert!(results.iter().all(|result| *result == results[0]));
        for run in &runs[1..] {
            assert_eq!((&run.frame, &run.decoded), (&runs[0].frame, &runs[0].decoded));
            assert_eq!(run.seen(), runs[0].seen());
        }
        for run in &mut runs {
            if undo && results[0].is_ok() && run.state.rollback().is_ok() {
                assert_eq!(run.seen(), before);
            }
        }
    }
});
