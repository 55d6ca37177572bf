//! Positions that somebody else chose.

use super::*;

/// Encodes a step at these positions.
fn encode_at(
    codec: &Codec,
    x: &[f32],
    state: &mut State,
    positions: &[u32],
    workspace: &mut Workspace,
) -> (Vec<u8>, Encoded) {
    let mut out = Vec::new();
    let support = Support { positions, may_trim: false };
    let encoded =
        codec.encode_at(Input::F32(x), state, support, None, workspace, &mut out).unwrap();
    (out, encoded)
}

/// The same where that may be an error.
fn attempt_at(
    codec: &Codec,
    x: &[f32],
    state: &mut State,
    support: Support<'_>,
    limit: Option<usize>,
) -> (Result<Encoded>, Vec<u8>) {
    let (mut out, mut workspace) = (vec![1], Workspace::default());
    let result = codec.encode_at(Input::F32(x), state, support, limit, &mut workspace, &mut out);
    assert!(result.is_ok() || out.is_empty());
    (result, out)
}

fn selecting(memory: Memory) -> impl Iterator<Item = Codec> {
    codecs(memory).into_iter().filter(|codec| codec.sparsifier() != Sparsifier::All)
}

#[test]
fn the_selected_positions_give_the_frame_and_the_memory_of_selecting() {
    for n in [0, 1, 130, 5000] {
        for codec in [FEEDBACK, Memory::None].into_iter().flat_map(selecting) {
            let (mut own, mut given) = (codec.init_state(n).unwrap(), codec.init_state(n).unwrap());
            for step in 0..3 {
                let x = gradient(n, 40 + step);
                let (frame, _) = encode(&codec, &x, &mut own);
                let mut workspace = Workspace::default();
                let at = encode_at(&codec, &x, &mut given, &positions(&frame), &mut workspace);
                if codec.sparsifier().is_drawn() {
                    // Positions that were given have no key to stand for them.
                    assert_eq!(decode(&at.0, n), decode(&frame, n), "{codec:?} {n}");
                } else {
                    assert_eq!(at.0, frame, "{codec:?} {n}");
                }
                assert_eq!(at.1.trimmed, 0);
                assert_eq!(given.residual(), own.residual());
            }
        }
    }
}

/// A draw's own positions take nine bytes, however many they are; others take more.
#[test]
fn frames_at_given_positions_are_no_longer_than_promised() {
    let n = 800;
    let given: Vec<u32> = vec![3, 395, 742, 743, 744, 745, 746, 747, 761, 770];
    for codec in selecting(Memory::None) {
        let (mut state, mut workspace) = (codec.init_state(n).unwrap(), Workspace::default());
        let (frame, _) = encode_at(&codec, &gradient(n, 1), &mut state, &given, &mut workspace);
        let promised = codec.max_len_of(n, given.len() as u64);
        assert!(frame.len() <= promised, "{codec:?}: {} bytes of {promised}", frame.len());
    }
}

#[test]
fn levels_and_threads_agree_on_given_positions() {
    let n = 300_000;
    let positions: Vec<u32> = (0..n as u32).step_by(997).collect();
    let memory = Memory::Residual(Residual { decay: 0.9, ..Residual::PLAIN });
    let codec = of(top(1), Quantizer::Float16(Float16 { scaled: true }), memory);
    on_every_level(&codec, [1, 2, 3], 0, |workspace| {
        let mut state = codec.init_state(n).unwrap();
        let mut frame = |s| encode_at(&codec, &gradient(n, s), &mut state, &positions, workspace);
        let frames = [0, 1, 2].map(&mut frame);
        (frames, contents(&state))
    });
}

#[test]
fn zeros_are_sent_where_they_are_asked_for() {
    for codec in selecting(FEEDBACK) {
        let mut state = codec.init_state(5).unwrap();
        let x = [0.0, 3.0, 0.0, -1.0, 0.5];
        let (frame, encoded) =
            encode_at(&codec, &x, &mut state, &[0, 2, 3], &mut Workspace::default());
        assert_eq!((encoded.count, encoded.target), (3, Some(3)));
        assert_eq!(positions(&frame), [0, 2, 3]);
        assert_eq!(decode(&frame, 5), [0.0, 0.0, 0.0, -1.0, 0.0]);
        assert_eq!(state.residual().unwrap(), [0.0, 3.0, 0.0, 0.0, 0.5]);
        state.rollback().unwrap();
        assert_eq!(state.residual().unwrap(), [0.0; 5]);
    }
}

#[test]
fn wrong_positions_leave_the_state_and_the_chance_to_roll_back() {
    let n = 100;
    for codec in selecting(FEEDBACK) {
        let mut state = codec.init_state(n).unwrap();
        encode(&codec, &gradient(n, 1), &mut state);
        let before = contents(&state);
        for positions in [&[3, 3][..], &[5, 2], &[0, 100], &[u32::MAX]] {
            let support = Support { positions, may_trim: true };
            let (result, _) = attempt_at(&codec, &gradient(n, 2), &mut state, support, None);
            assert!(matches!(result, Err(Error::Argument { .. })), "{positions:?}");
        }
        assert_eq!(contents(&state), before);
        state.rollback().unwrap();
    }
    let all = exact(Sparsifier::All, FEEDBACK);
    let support = Support { positions: &[0], may_trim: false };
    let (result, _) = attempt_at(&all, &[1.0], &mut all.init_state(1).unwrap(), support, None);
    assert!(matches!(result, Err(Error::Argument { .. })));
}

#[test]
fn what_is_not_finite_is_found_wherever_it_is() {
    let n = 5000;
    for codec in [FEEDBACK, Memory::None].into_iter().flat_map(selecting) {
        let mut state = codec.init_state(n).unwrap();
        encode(&codec, &gradient(n, 1), &mut state);
        let before = contents(&state);
        // Both in the support, one of the two, neither.
        for positions in [&[77, 4000][..], &[4000], &[5]] {
            let mut x = gradient(n, 2);
            (x[77], x[4000]) = (f32::NAN, f32::INFINITY);
            let support = Support { positions, may_trim: false };
            let (result, _) = attempt_at(&codec, &x, &mut state, support, None);
            assert_eq!(result, Err(Error::NonFinite { count: 2, first: 77 }), "{codec:?}");
            assert_eq!(contents(&state), before);
        }
    }
}

#[test]
fn a_limit_trims_where_it_may_and_is_an_error_where_not() {
    let n = 50_000;
    let x = gradient(n, 9);
    let positions: Vec<u32> = (0..n as u32).step_by(20).collect();
    for codec in selecting(FEEDBACK) {
        let mut state = codec.init_state(n).unwrap();
        let mut run = |may_trim, limit| {
            let support = Support { positions: &positions, may_trim };
            let (result, out) = attempt_at(&codec, &x, &mut state, support, Some(limit));
            (result, out, state.residual().unwrap().to_vec())
        };
        let (refused, _, residual) = run(false, 1000);
        assert!(matches!(refused, Err(Error::LimitTooSmall { .. })), "{codec:?}");
        assert!(residual.iter().all(|&r| r == 0.0));
        let (trimmed, frame, residual) = run(true, 1000);
        let Encoded { count, trimmed, .. } = trimmed.unwrap();
        assert_eq!(count + trimmed, positions.len() as u64);
        assert!(trimmed > 0 && frame.len() <= 1000);
        let sent = decode(&frame, n);
        assert!((0..n).all(|i| residual[i] == reference::kept(x[i] - sent[i])));
    }
}

#[test]
fn a_preview_is_what_is_encoded_and_changes_nothing() {
    let n = 5000;
    for memory in [Memory::Residual(Residual { decay: 0.9, ..Residual::PLAIN }), Memory::None] {
        for codec in codecs(memory) {
            let mut state = codec.init_state(n).unwrap();
            encode(&codec, &gradient(n, 1), &mut state);
            let (x, mut seen) = (gradient(n, 2), vec![f32::NAN; n]);
            let mut workspace = Workspace::default();
            codec.preview(Input::F32(&x), &state, &mut workspace, &mut seen).unwrap();
            let before = state.clone();
            assert_eq!(state.scalars(), before.scalars());
            if codec.sparsifier() != Sparsifier::All {
                let everything: Vec<u32> = (0..n as u32).collect();
                let mut workspace = Workspace::default();
                let (frame, _) = encode_at(&codec, &x, &mut state, &everything, &mut workspace);
                if codec.quantizer() == Quantizer::Float32 {
                    assert_eq!(decode(&frame, n), seen);
                }
            }
            let short = codec.preview(Input::F32(&x), &before, &mut workspace, &mut seen[1..]);
            assert!(matches!(short, Err(Error::Argument { .. })));
            let bad = vec![f32::NAN; n];
            let result = codec.preview(Input::F32(&bad), &before, &mut workspace, &mut seen);
            assert_eq!(result, Err(Error::NonFinite { count: n as u64, first: 0 }));
        }
    }
}

#[test]
fn what_is_chosen_elsewhere_is_encoded_at_positions_alone() {
    let codec = exact(Sparsifier::Custom(Custom { id: 1 }), FEEDBACK);
    let mut state = codec.init_state(4).unwrap();
    let x = [4.0, 3.0, 2.0, 1.0];
    let (refused, _) = attempt(&codec, Input::F32(&x), &mut state, None);
    assert!(matches!(refused, Err(Error::Argument { .. })));
    assert_eq!(state.step(), 0);
    let (frame, _) = encode_at(&codec, &x, &mut state, &[1, 3], &mut Workspace::default());
    assert_eq!(Frame::parse(&frame, None).unwrap().header().sparsifier.name(), Some("custom"));
    assert_eq!(decode(&frame, 4), [0.0, 3.0, 0.0, 1.0]);
    assert_eq!(state.residual().unwrap(), [4.0, 0.0, 2.0, 0.0]);
}
