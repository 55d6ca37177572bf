//! Random-k: the same positions on all ranks, whatever stands there.

use super::*;
use crate::pack::{Coding, Draw, DrawKind};
use crate::rng::Key;

const RANDOM: RandomK =
    RandomK { amount: Amount::Ratio(0.01), block: false, seed: 3, scaled: false };

fn codec(random: RandomK, memory: Memory) -> Codec {
    exact(Sparsifier::RandomK(random), memory)
}

#[test]
fn a_frame_says_nothing_of_positions_but_their_key() {
    let n = 5000;
    for (block, kind) in [(false, DrawKind::Subset), (true, DrawKind::Run)] {
        let codec = codec(RandomK { block, ..RANDOM }, Memory::None);
        let x = gradient(n, 1);
        let (frame, encoded) = encode(&codec, &x, &mut codec.init_state(n).unwrap());
        assert_eq!(frame.len(), 48 + 9 + 50 * 4);
        assert_eq!(codec.max_encoded_len(n), frame.len());
        let draw = Draw { kind, key: Key::new(3, 0, 0, 0) };
        let header = *Frame::parse(&frame, None).unwrap().header();
        assert_eq!(header.coding, Coding::Seeded(draw));
        assert_eq!((encoded.count, encoded.target), (50, Some(50)));
        let mut drawn = Vec::new();
        draw.positions_into(Kernels::current(), n as u64, 50, &mut drawn).unwrap();
        assert_eq!(positions(&frame), drawn);
        let sent = decode(&frame, n);
        assert!(drawn.iter().all(|&i| sent[i as usize].to_bits() == x[i as usize].to_bits()));
    }
}

#[test]
fn zeros_are_sent_as_they_are_drawn() {
    for memory in [Memory::None, FEEDBACK] {
        let codec = codec(RANDOM, memory);
        let (frame, encoded) = encode(&codec, &[0.0; 1000], &mut codec.init_state(1000).unwrap());
        assert_eq!((encoded.count, positions(&frame).len()), (10, 10));
    }
}

#[test]
fn scaled_values_are_as_much_larger_as_they_are_rarely_sent() {
    let x = gradient(40, 2);
    for block in [false, true] {
        let random = RandomK { amount: Amount::Count(10), block, scaled: true, ..RANDOM };
        let codec = codec(random, Memory::None);
        let (frame, _) = encode(&codec, &x, &mut codec.init_state(40).unwrap());
        let sent = decode(&frame, 40);
        assert!(positions(&frame).iter().all(|&i| sent[i as usize] == 4.0 * x[i as usize]));
    }
    let huge = codec(RandomK { scaled: true, ..RANDOM }, Memory::None);
    let (frame, _) = encode(&huge, &[f32::MAX; 200], &mut huge.init_state(200).unwrap());
    assert!(decode(&frame, 200).iter().all(|&v| v == 0.0 || v == f32::MAX));
}

#[test]
fn a_shorter_frame_draws_fewer_and_keeps_the_rest() {
    let n = 20_000;
    let x = gradient(n, 9);
    for (block, memory) in [(false, FEEDBACK), (true, FEEDBACK)] {
        let codec = codec(RandomK { block, ..RANDOM }, memory);
        for limit in [857, 856, 500, 61, 57, 48] {
            let mut state = codec.init_state(n).unwrap();
            let (encoded, out) = attempt(&codec, Input::F32(&x), &mut state, Some(limit));
            let encoded = encoded.unwrap();
            assert!(out.len() <= limit && out.len() + 20 >= limit, "{} of {limit}", out.len());
            assert_eq!(encoded.count + encoded.trimmed, 200);
            let sent = decode(&out, n);
            assert!(
                (0..n).all(|i| state.residual().unwrap()[i] == reference::kept(x[i] - sent[i]))
            );
            // Another rank with the same limit sends the same positions.
            let mut other = codec.init_state(n).unwrap();
            let y = gradient(n, 10);
            let (_, theirs) = attempt(&codec, Input::F32(&y), &mut other, Some(limit));
            assert_eq!(positions(&out), positions(&theirs));
        }
    }
}

#[test]
fn without_a_memory_only_what_is_drawn_is_looked_at() {
    let n = 1000;
    let codec = codec(RANDOM, Memory::None);
    let mut state = codec.init_state(n).unwrap();
    let (frame, _) = encode(&codec, &vec![1.0; n], &mut state.clone());
    let drawn = positions(&frame);
    let mut x = vec![f32::NAN; n];
    for &i in &drawn {
        x[i as usize] = 2.0;
    }
    encode(&codec, &x, &mut state.clone());
    x[drawn[3] as usize] = f32::INFINITY;
    let (result, _) = attempt(&codec, Input::F32(&x), &mut state, None);
    assert_eq!(result, Err(Error::NonFinite { count: 1, first: u64::from(drawn[3]) }));
    assert_eq!(state.step(), 0);
}

/// A frame that is too long is drawn again with fewer entries, at positions that may be others.
#[test]
fn what_is_drawn_for_a_shorter_frame_is_looked_at_too() {
    let n = 40;
    let codec = codec(RandomK { amount: Amount::Count(30), ..RANDOM }, Memory::None);
    let (whole, _) = encode(&codec, &vec![1.0; n], &mut codec.init_state(n).unwrap());
    let drawn = positions(&whole);
    let x: Vec<f32> =
        (0..n as u32).map(|at| if drawn.contains(&at) { 2.0 } else { f32::NAN }).collect();
    let mut refused = 0;
    for limit in 48..whole.len() {
        let mut state = codec.init_state(n).unwrap();
        let (result, out) = attempt(&codec, Input::F32(&x), &mut state, Some(limit));
        match result {
            Ok(encoded) => {
                assert!(encoded.count < 30);
                assert!(positions(&out).iter().all(|at| drawn.contains(at)));
            }
            Err(Error::NonFinite { first, .. }) => {
                assert!(x[first as usize].is_nan() && state.step() == 0);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
}
