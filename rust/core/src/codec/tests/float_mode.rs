//! Programs that flush subnormal numbers, or round otherwise, get the same frames.

use super::*;
use crate::simd::float_mode::testing::in_hostile_mode;

/// Steps of frames and the state after them, and what the last one decodes to and adds.
fn run_and_decode(
    codec: &Codec,
    steps: &[Vec<f32>],
    threads: usize,
) -> impl PartialEq + std::fmt::Debug {
    let n = steps[0].len();
    let mut workspace = Workspace::with(Kernels::current(), threads);
    let ran = run(codec, steps, &mut workspace);
    let frame = ran.0.last().unwrap();
    let mut sum = vec![f32::from_bits(1); n];
    let parsed = Frame::parse(frame, None).unwrap();
    parsed.decode_add(&mut sum, 0.5, &mut Scratch::default()).unwrap();
    let decoded = bits(&decode(frame, n));
    (ran, decoded, bits(&sum))
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
            let expected = run_and_decode(&codec, &steps, 1);
            assert_eq!(
                in_hostile_mode(|| run_and_decode(&codec, &steps, 1)),
                expected,
                "{codec:?}"
            );
        }
    }
}

#[test]
fn states_are_saved_and_loaded_to_the_last_bit() {
    let codec = exact(top_ratio(0.01), FEEDBACK);
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
    let codec = exact(top_ratio(0.1), FEEDBACK);
    let mut state = codec.init_state(100).unwrap();
    // That checks the mode.
    in_hostile_mode(|| {
        attempt(&codec, Input::F32(&[f32::NAN; 100]), &mut state, None).0.unwrap_err();
    });
}
