//! Encodes in two halves: together they are the ordinary one, and the first alone is nothing.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::codec::State;
use crate::scan::CHUNK;

/// Every memory in one buffer.
fn memories() -> Vec<Memory> {
    Memory::examples().into_iter().filter(|memory| memory.is_in_place()).collect()
}

fn every_codec(memory: Memory) -> Vec<Codec> {
    codecs(memory).into_iter().chain(scaled_codecs(memory)).collect()
}

/// Residual and moment, scalars and step.
type Whole = (Vec<u32>, Vec<u32>, Vec<(String, f64)>, u64);

/// All that a state is, to the last bit.
fn whole(state: &State) -> Whole {
    let residual = match state.stored_residual() {
        Some(Input::BF16(values)) => values.iter().map(|v| v.to_bits().into()).collect(),
        _ => bits(state.residual().unwrap_or_default()),
    };
    (residual, bits(state.second_moment().unwrap_or_default()), state.scalars(), state.step())
}

fn whole_encode(
    codec: &Codec,
    x: Input<'_>,
    state: &mut State,
    limit: Option<usize>,
) -> Result<(Vec<u8>, Encoded)> {
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    codec.encode_into(x, state, limit, &mut workspace, &mut out).map(|encoded| (out, encoded))
}

fn first_half(
    codec: &Codec,
    x: Input<'_>,
    state: &mut State,
    limit: Option<usize>,
) -> Result<(Vec<u8>, Encoded)> {
    let (mut out, mut workspace) = (Vec::new(), Workspace::default());
    let encoded = codec.encode_later(x, state, None, limit, &mut workspace, &mut out)?;
    Ok((out, encoded))
}

/// A step of both: the first half dropped once and made again.
fn check_step(
    codec: &Codec,
    x: Input<'_>,
    limit: Option<usize>,
    ordinary: &mut State,
    halves: &mut State,
) {
    let before = whole(halves);
    let expected = whole_encode(codec, x, ordinary, limit);
    for dropped in [true, false] {
        let found = first_half(codec, x, halves, limit);
        assert_eq!(found, expected, "{codec:?} {}", x.len());
        assert_eq!(whole(halves), before, "{codec:?} {}: nothing has changed yet", x.len());
        assert_eq!(halves.can_roll_back(), expected.is_ok());
        match found {
            Ok(_) if dropped => halves.rollback().unwrap(),
            Ok((frame, _)) => halves.settle(x, &frame, &mut Workspace::default()).unwrap(),
            Err(_) => {}
        }
    }
    assert_eq!(whole(halves), whole(ordinary), "{codec:?} {}", x.len());
    assert!(!halves.can_roll_back());
}

#[test]
fn both_halves_are_the_ordinary_encode() {
    let lengths = if cfg!(miri) { vec![0, 33] } else { vec![0, 1, 31, 130, 4097] };
    for (memory, n) in memories().into_iter().flat_map(|m| lengths.iter().map(move |&n| (m, n))) {
        for codec in every_codec(memory) {
            let (mut one, mut two) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
            for step in 0..3 {
                check_step(&codec, Input::F32(&gradient(n, step)), None, &mut one, &mut two);
            }
        }
    }
}

#[test]
fn degenerate_tensors_are_settled_too() {
    let mut spike = vec![0.0; 300];
    spike[77] = -3.0;
    let tensors = [vec![0.0; 300], vec![0.25; 300], spike, vec![1e-41; 300], vec![-0.0; 300]];
    for memory in memories() {
        for codec in every_codec(memory) {
            let mut one = codec.init_state(300).unwrap();
            let mut two = one.clone();
            for x in &tensors {
                check_step(&codec, Input::F32(x), None, &mut one, &mut two);
            }
        }
    }
}

#[test]
fn every_element_type_is_settled_in_float32() {
    let x = gradient(500, 3);
    let wide: Vec<f64> = x.iter().map(|&v| v.into()).collect();
    let half: Vec<f16> = x.iter().map(|&v| f16::from_f32(v)).collect();
    let brain: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
    for memory in memories() {
        for codec in every_codec(memory) {
            let mut one = codec.init_state(500).unwrap();
            let mut two = one.clone();
            for x in [Input::F64(&wide), Input::F16(&half), Input::BF16(&brain)] {
                check_step(&codec, x, None, &mut one, &mut two);
            }
        }
    }
}

#[test]
fn positions_that_were_given_are_settled() {
    let (n, positions) = (400, [0, 7, 8, 200, 399]);
    let support = Support { positions: &positions, may_trim: true };
    for memory in memories() {
        let selecting = |codec: &Codec| codec.sparsifier() != Sparsifier::All;
        for codec in every_codec(memory).into_iter().filter(selecting) {
            let (mut workspace, mut frames) = (Workspace::default(), [Vec::new(), Vec::new()]);
            let (mut one, mut two) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
            for step in 0..2 {
                let (x, [frame, later]) = (gradient(n, step), &mut frames);
                let x = Input::F32(&x);
                let whole_one = codec
                    .encode_at(x, &mut one, support, None, &mut workspace, &mut *frame)
                    .unwrap();
                let first = codec
                    .encode_later(x, &mut two, Some(support), None, &mut workspace, &mut *later)
                    .unwrap();
                two.settle(x, later, &mut workspace).unwrap();
                assert_eq!((&*frame, whole_one), (&*later, first));
                assert_eq!(whole(&one), whole(&two), "{codec:?}");
            }
        }
    }
}

#[test]
fn threads_agree_on_the_second_half() {
    let n = 7 * CHUNK + 1;
    let x = gradient(n, 5);
    let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.01) });
    for memory in memories() {
        for codec in compose(&[top, Sparsifier::All], &plain_quantizers(), memory) {
            let settled = [1, 3].map(|threads| {
                let mut workspace = Workspace::with(Kernels::current(), threads);
                workspace.scanner.grain = CHUNK;
                let (mut state, mut frame) = (codec.init_state(n).unwrap(), Vec::new());
                let x = Input::F32(&x);
                codec.encode_later(x, &mut state, None, None, &mut workspace, &mut frame).unwrap();
                state.settle(x, &frame, &mut workspace).unwrap();
                (frame, whole(&state))
            });
            let mut state = codec.init_state(n).unwrap();
            let (frame, _) = whole_encode(&codec, Input::F32(&x), &mut state, None).unwrap();
            assert!(settled.iter().all(|found| *found == (frame.clone(), whole(&state))));
        }
    }
}

#[test]
fn what_is_not_finite_changes_nothing() {
    let mut x = gradient(200, 9);
    x[31] = f32::NAN;
    for memory in memories() {
        for codec in every_codec(memory) {
            let (mut one, mut two) =
                (codec.init_state(200).unwrap(), codec.init_state(200).unwrap());
            check_step(&codec, Input::F32(&gradient(200, 8)), None, &mut one, &mut two);
            check_step(&codec, Input::F32(&x), None, &mut one, &mut two);
        }
    }
}

#[test]
fn only_the_very_encode_can_be_settled() {
    let (x, other) = (gradient(100, 1), gradient(100, 2));
    let (x, other) = (Input::F32(&x), Input::F32(&other));
    let mut workspace = Workspace::default();
    for memory in memories() {
        let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.1) });
        let codec = Codec::new(top, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        let mut state = codec.init_state(100).unwrap();
        let fresh = whole(&state);
        let refused = |state: &mut State, x: Input<'_>, frame: &[u8], why: &str| {
            let error = state.settle(x, frame, &mut Workspace::default()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(whole(state), fresh);
        };
        refused(&mut state, x, &[], "nothing to settle");
        let (frame, _) = first_half(&codec, x, &mut state, None).unwrap();
        state.rollback().unwrap();
        refused(&mut state, x, &frame, "nothing to settle");
        let (another, _) = first_half(&codec, other, &mut state, None).unwrap();
        refused(&mut state, x, &frame, "not the one");
        refused(&mut state, other, &another, "nothing to settle");
        for bytes in [&another[..3], &[]] {
            first_half(&codec, other, &mut state, None).unwrap();
            refused(&mut state, other, bytes, "not the one");
        }
        let mut flipped = another.clone();
        *flipped.last_mut().unwrap() ^= 1;
        first_half(&codec, other, &mut state, None).unwrap();
        refused(&mut state, other, &flipped, "checksum");
        first_half(&codec, other, &mut state, None).unwrap();
        refused(&mut state, Input::F32(&[1.0]), &another, "1 elements");
        // Whatever else changes the state drops the first half.
        let changes: [fn(&mut State); 3] = [
            State::reset,
            |state| state.set_residual(&[0.0; 100]).unwrap(),
            |state| state.load_scalars(&state.scalars()).unwrap(),
        ];
        for change in changes {
            first_half(&codec, other, &mut state, None).unwrap();
            change(&mut state);
            refused(&mut state, other, &another, "nothing to settle");
        }
        codec.encode_into(x, &mut state, None, &mut workspace, &mut Vec::new()).unwrap();
        assert!(state.rollback().is_err(), "a whole encode is not undone");
    }
}

#[test]
fn two_buffers_have_no_second_half() {
    for memory in Memory::examples().into_iter().filter(|memory| !memory.is_in_place()) {
        for codec in compose(&[Sparsifier::All], &[Quantizer::BFloat16], memory) {
            let mut state = codec.init_state(3).unwrap();
            let error = first_half(&codec, Input::F32(&[1.0; 3]), &mut state, None).unwrap_err();
            assert!(error.to_string().contains("rolled back"), "{error}");
        }
    }
}

#[test]
fn another_learning_rate_drops_the_first_half() {
    for memory in
        memories().into_iter().filter(|memory| memory.facts().keeps == Keeps::SecondMoment)
    {
        let codec =
            Codec::new(Sparsifier::All, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        let (mut state, x) = (codec.init_state(3).unwrap(), Input::F32(&[1.0; 3]));
        let (frame, _) = first_half(&codec, x, &mut state, None).unwrap();
        state.set_learning_rate(0.5).unwrap();
        assert!(state.settle(x, &frame, &mut Workspace::default()).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    /// Trimmed to any limit, step after step.
    #[test]
    fn halves_are_a_whole(
        memory in prop::sample::select(memories()),
        codec in any::<prop::sample::Index>(),
        n in 0usize..700,
        seed in 0u64..1000,
        limits in prop::collection::vec(prop::option::of(40usize..400), 1..4),
    ) {
        let codecs = every_codec(memory);
        let codec = codec.get(&codecs);
        let mut one = codec.init_state(n).unwrap();
        let mut two = one.clone();
        for (step, limit) in (seed..).zip(limits) {
            check_step(codec, Input::F32(&gradient(n, step)), limit, &mut one, &mut two);
        }
    }
}
