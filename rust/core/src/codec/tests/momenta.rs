//! Estimates of momentum: what each rank keeps, what all share, and what an owner adds.

use super::*;
use crate::bucket::{MergeScratch, Owned, merge};
use crate::memory::Estimate;

fn estimate(momentum: f32, nesterov: bool) -> Memory {
    Estimate { momentum, nesterov }.into()
}

#[test]
fn estimates_follow_the_equations_and_stay_where_nothing_is_sent() {
    let n = 700;
    let steps: Vec<_> = (50..62).map(|seed| gradient(n, seed)).collect();
    for (momentum, nesterov) in [(0.95, true), (0.5, false), (0.0, true)] {
        let memory = estimate(momentum, nesterov);
        for codec in [codecs(memory), scaled_codecs(memory)].concat() {
            let mut state = codec.init_state(n).unwrap();
            let mut oracle = reference::Estimate::new(f64::from(momentum), nesterov, n);
            for x in &steps {
                let before = state.residual().unwrap().to_vec();
                let mut seen = vec![0.0; n];
                let (input, mut workspace) = (Input::F32(x), Workspace::default());
                codec.preview(input, &state, &mut workspace, &mut seen).unwrap();
                let (frame, _) = encode(&codec, x, &mut state);
                let (sent, after) = (decode(&frame, n), state.residual().unwrap());
                let changes = oracle.changes(x);
                oracle.sent(&sent);
                let factor = if nesterov { f64::from(momentum) } else { 1.0 };
                for i in 0..n {
                    let expected = reference::kept(before[i] + sent[i]);
                    let unit = f32::EPSILON * (seen[i].abs() + sent[i].abs() + after[i].abs());
                    // Where all are sent, what is sent is known as a difference.
                    let near = if codec.sparsifier() == Sparsifier::All { unit } else { 0.0 };
                    assert!((after[i] - expected).abs() <= near, "{codec:?} {i}");
                    assert!((f64::from(seen[i]) - changes[i]).abs() < 1e-5, "{codec:?} {i}");
                    assert!((f64::from(after[i]) - oracle.estimate[i]).abs() < 1e-4, "{codec:?}");
                    let kept = f64::from(state.momentum().unwrap()[i]);
                    assert!((kept - factor * oracle.momentum[i]).abs() < 1e-5, "{codec:?} {i}");
                }
            }
        }
    }
}

#[test]
fn the_shared_estimate_is_undone_with_the_encode_whose_change_it_has_taken_in() {
    let codec = exact(top(2), estimate(0.9, true));
    let mut state = codec.init_state(3).unwrap();
    let shared = |state: &State| state.estimate().unwrap().to_vec();
    encode(&codec, &[1.0, 2.0, 3.0], &mut state);
    let mut mean = [8.0, 0.0, -4.0];
    state.deliver(&mut mean, 4.0).unwrap();
    assert_eq!((mean, shared(&state)), ([8.0, 0.0, -4.0], vec![2.0, 0.0, -1.0]));
    encode(&codec, &[1.0, 2.0, 3.0], &mut state);
    let before = contents(&state);
    state.rollback().unwrap();
    assert_eq!(shared(&state), [2.0, 0.0, -1.0], "nothing was delivered since");
    encode(&codec, &[1.0, 2.0, 3.0], &mut state);
    assert_eq!(contents(&state), before);
    let mut mean = [1.0, 1.0, 1.0];
    state.deliver(&mut mean, 1.0).unwrap();
    assert_eq!((mean, shared(&state)), ([3.0, 1.0, 0.0], vec![3.0, 1.0, 0.0]));
    let restored = saved(&codec, &state);
    assert_eq!(shared(&restored), [3.0, 1.0, 0.0]);
    let mut bad = [0.0, f32::INFINITY, 0.0];
    assert_eq!(state.deliver(&mut bad, 1.0), Err(Error::NonFinite { count: 1, first: 1 }));
    assert!(state.deliver(&mut [0.0; 2], 1.0).is_err());
    assert_eq!(shared(&state), [3.0, 1.0, 0.0]);
    state.reset();
    assert_eq!(shared(&state), [0.0; 3]);
    assert!(exact(top(2), FEEDBACK).init_state(3).unwrap().deliver(&mut mean, 1.0).is_err());
}

/// What an owner does not send on of the sums is missing in what all ranks share, so it is taken back
/// from its own estimate: the sum of the estimates of all ranks stays what was sent to all.
#[test]
fn an_owner_takes_what_it_does_not_send_from_its_own_estimate() {
    let n = 2000;
    for sparsifier in [top_ratio(0.05), Sparsifier::All] {
        let quantizer = SignScale { magnitude: Magnitude::Mean }.into();
        let codec = of(sparsifier, quantizer, estimate(0.9, true));
        let (mut states, mut total) = (vec![codec.init_state(n).unwrap(); 3], vec![0.0; n]);
        for step in 0..5 {
            let frame = |(rank, state): (u64, &mut State)| {
                encode(&codec, &gradient(n, 100 * step + rank), state).0
            };
            let frames: Vec<_> = (0..).zip(&mut states).map(frame).collect();
            let mut messages: Vec<_> = frames.iter().map(Vec::as_slice).collect();
            let state = &mut states[0];
            let mut owned = [Owned { codec: &codec, state, range: 0..n, unused: false }];
            let (mut out, mut merged) = (Vec::new(), Vec::new());
            let scratch = &mut MergeScratch::default();
            merge(&mut messages, &mut owned, scratch, &mut out, &mut merged).unwrap();
            for (total, sent) in total.iter_mut().zip(decode(&out, n)) {
                *total += sent;
            }
            for (i, &total) in total.iter().enumerate() {
                let own: f32 = states.iter().map(|state| state.residual().unwrap()[i]).sum();
                assert!((own - total).abs() < 1e-5, "{own} {total} {codec:?} {i}");
            }
        }
    }
}
