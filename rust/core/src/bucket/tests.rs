use half::{bf16, f16};

use super::*;
use crate::codec::{Codec, State, Workspace};
use crate::frame::{Frame, Scratch as Decoding, Split};
use crate::memory::{Memory, Residual};
use crate::pack::IndexCoding;
use crate::quantize::Quantizer;
use crate::simd::testing;
use crate::sparsify::{Amount, Sparsifier, Threshold, TopK};
use crate::{Error, Input};

const LENGTHS: [usize; 5] = [300, 1, 0, 2000, 77];

fn codec(sparsifier: Sparsifier) -> Codec {
    let memory = Memory::Residual(Residual::PLAIN);
    Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).unwrap()
}

fn codecs() -> [Codec; 5] {
    let top = codec(Sparsifier::TopK(TopK { amount: Amount::Ratio(0.1) }));
    let threshold = codec(Sparsifier::Threshold(Threshold { threshold: 0.3 }));
    [top, threshold, top, codec(Sparsifier::All), threshold]
}

fn states(codecs: &[Codec]) -> Vec<State> {
    codecs.iter().zip(LENGTHS).map(|(codec, len)| codec.init_state(len).unwrap()).collect()
}

fn gradient(seed: u64) -> Vec<f32> {
    let total = LENGTHS.iter().sum();
    testing::tensor(total, seed).iter().map(|v| v.clamp(-2.0, 2.0)).collect()
}

fn pieces<'a>(codecs: &'a [Codec], states: &'a mut [State]) -> Vec<Piece<'a>> {
    let mut at = 0;
    codecs
        .iter()
        .zip(states)
        .zip(LENGTHS)
        .map(|((codec, state), len)| {
            at += len;
            let limit = codec.max_encoded_len(len);
            Piece { codec, state, range: at - len..at, support: None, limit, coder: None }
        })
        .collect()
}

/// The frames of a bucket, one after another, and what is said of each.
fn bucket(
    input: Input<'_>,
    scale: f32,
    codecs: &[Codec],
    states: &mut [State],
) -> (Result<(), Error>, Vec<Vec<u8>>, Vec<Outcome>) {
    let mut pieces = pieces(codecs, states);
    let mut out = vec![0; pieces.iter().map(|piece| piece.limit).sum()];
    let (mut scratch, mut outcomes) = (EncodeScratch::default(), Vec::new());
    let done = encode(input, scale, &mut pieces, &mut scratch, &mut out, &mut outcomes);
    let mut rest = out.as_slice();
    let mut frames = Vec::new();
    for outcome in &outcomes {
        let (frame, after) = rest.split_at(outcome.encoded.nbytes);
        frames.push(frame.to_vec());
        rest = after;
    }
    (done, frames, outcomes)
}

#[test]
fn a_bucket_has_the_frames_and_states_of_its_pieces_one_by_one() {
    let codecs = codecs();
    let (mut together, mut alone) = (states(&codecs), states(&codecs));
    for step in 0..3 {
        let x = gradient(step);
        let (done, frames, outcomes) = bucket(Input::F32(&x), 1.0, &codecs, &mut together);
        done.unwrap();
        let mut at = 0;
        for i in 0..codecs.len() {
            let piece = Input::F32(&x[at..at + LENGTHS[i]]);
            let (mut workspace, mut frame) = (Workspace::default(), Vec::new());
            let limit = Some(codecs[i].max_encoded_len(LENGTHS[i]));
            let encoded = codecs[i]
                .encode_into(piece, &mut alone[i], limit, &mut workspace, &mut frame)
                .unwrap();
            assert_eq!((&frames[i], outcomes[i].encoded), (&frame, encoded));
            assert_eq!(together[i].residual(), alone[i].residual());
            at += LENGTHS[i];
        }
    }
}

#[test]
fn every_element_type_is_unscaled_in_float32() {
    let codecs = codecs();
    let x: Vec<f32> = gradient(5).iter().map(|&v| f32::from(v != 0.0) * (v + 3.0)).collect();
    let halves: Vec<f16> = x.iter().map(|&v| f16::from_f32(v)).collect();
    let brains: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
    let doubles: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let inputs = [
        (Input::F32(&x), x.clone()),
        (Input::F64(&doubles), x.clone()),
        (Input::F16(&halves), halves.iter().map(|v| v.to_f32()).collect()),
        (Input::BF16(&brains), brains.iter().map(|v| v.to_f32()).collect()),
    ];
    for (input, wide) in inputs {
        for scale in [65536.0, 3e7, 3.0] {
            let plain: Vec<f32> = wide.iter().map(|v| v / scale).collect();
            let (mut scaled, mut unscaled) = (states(&codecs), states(&codecs));
            let (_, frames, _) = bucket(input, scale, &codecs, &mut scaled);
            let (_, expected, _) = bucket(Input::F32(&plain), 1.0, &codecs, &mut unscaled);
            assert_eq!(frames.len(), codecs.len());
            assert_eq!(frames, expected);
        }
    }
}

#[test]
fn says_which_pieces_are_zero_of_either_sign() {
    let codecs = codecs();
    let total = LENGTHS.iter().sum();
    let mut x = vec![0.0; total];
    x[17] = -0.0;
    x[300] = -0.0;
    x[total - 1] = f32::from_bits(1);
    let halves: Vec<f16> = x.iter().map(|&v| f16::from_bits((v.to_bits() >> 16) as u16)).collect();
    for (input, last) in [(Input::F32(&x), false), (Input::F16(&halves), true)] {
        let (_, _, outcomes) = bucket(input, 1.0, &codecs, &mut states(&codecs));
        let zeros: Vec<bool> = outcomes.iter().map(|outcome| outcome.zero).collect();
        assert_eq!(zeros, [true, true, true, true, last]);
    }
}

#[test]
fn a_bad_piece_leaves_those_before_it_encoded_and_all_others_as_they_were() {
    let codecs = codecs();
    let mut states = states(&codecs);
    let mut x = gradient(1);
    x[301 + 5] = f32::NAN;
    let (done, frames, _) = bucket(Input::F32(&x), 1.0, &codecs, &mut states);
    assert_eq!(done, Err(Error::NonFinite { count: 1, first: 5 }));
    assert_eq!(frames.len(), 3);
    let steps: Vec<u64> = states.iter().map(State::step).collect();
    assert_eq!(steps, [1, 1, 1, 0, 0]);
    for state in &mut states[..3] {
        state.rollback().unwrap();
        assert!(state.residual().unwrap().iter().all(|&value| value == 0.0));
    }
}

fn frames_of_ranks(ranks: u64) -> (Vec<Vec<u8>>, Vec<Vec<f32>>) {
    let codec = codec(Sparsifier::TopK(TopK { amount: Amount::Ratio(0.3) }));
    let (mut frames, mut tensors) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let x: Vec<f32> = testing::tensor(500, rank).iter().map(|v| v.clamp(-2.0, 2.0)).collect();
        let mut state = codec.init_state(500).unwrap();
        let (mut workspace, mut frame) = (Workspace::default(), Vec::new());
        codec.encode_into(Input::F32(&x), &mut state, None, &mut workspace, &mut frame).unwrap();
        let mut tensor = vec![0.0; 500];
        let parsed = Frame::parse(&frame, None).unwrap();
        parsed.decode_into(&mut tensor, &mut Decoding::default()).unwrap();
        frames.push(frame);
        tensors.push(tensor);
    }
    (frames, tensors)
}

#[test]
fn averages_are_sums_in_the_order_of_ranks_divided_and_scaled() {
    for ranks in 1..=5u16 {
        let (frames, tensors) = frames_of_ranks(u64::from(ranks));
        for (mean, scale) in [
            (Mean::Ranks, 1.0),
            (Mean::Ranks, 65536.0),
            (Mean::Ranks, 7.0),
            (Mean::Senders, 1.0),
            (Mean::Senders, 10.0),
            (Mean::Of(8), 65536.0),
            (Mean::Of(6), 10.0),
        ] {
            let mut out = vec![7.0; 500];
            let average = Average { mean, scale };
            let frames = frames.iter().map(Vec::as_slice);
            let mut scratch = AverageScratch::default();
            average.write(frames.clone(), Output::F32(&mut out), &mut scratch).unwrap();
            for i in 0..500 {
                let sum = tensors.iter().fold(0.0, |sum, tensor| sum + tensor[i]);
                let senders = tensors.iter().filter(|tensor| tensor[i] != 0.0).count().max(1);
                let expected = match mean {
                    Mean::Ranks => sum / f32::from(ranks) * scale as f32,
                    Mean::Senders => sum * scale as f32 / senders as f32,
                    Mean::Of(number) => sum / number as f32 * scale as f32,
                };
                assert_eq!(out[i], expected, "{ranks} ranks, {mean:?}, scale {scale}");
            }
            let mut half = vec![f16::ZERO; 500];
            average.write(frames.clone(), Output::F16(&mut half), &mut scratch).unwrap();
            assert!(half.iter().zip(&out).all(|(half, &wide)| *half == f16::from_f32(wide)));
            let mut brain = vec![bf16::ZERO; 500];
            average.write(frames.clone(), Output::BF16(&mut brain), &mut scratch).unwrap();
            assert!(brain.iter().zip(&out).all(|(brain, &wide)| *brain == bf16::from_f32(wide)));
            let mut double = vec![0.0; 500];
            average.write(frames, Output::F64(&mut double), &mut scratch).unwrap();
            assert!(double.iter().zip(&out).all(|(double, &wide)| *double == f64::from(wide)));
        }
    }
}

#[test]
fn a_frame_of_another_length_is_an_error() {
    let (frames, _) = frames_of_ranks(2);
    let average = Average { mean: Mean::Ranks, scale: 1.0 };
    for len in [499, 501] {
        let mut out = vec![0.0; len];
        let frames = frames.iter().map(Vec::as_slice);
        let done = average.write(frames, Output::F32(&mut out), &mut AverageScratch::default());
        assert!(done.is_err());
    }
}

const SUMS: usize = 4;

/// What two ranks send of the first of these entries, and the owner of all has of their sums and in
/// its residual: each rank has a zero where the other one has none.
fn merged(amount: Sparsifier) -> (Vec<f32>, u64, Vec<f32>) {
    let codec = codec(amount);
    let tensors = [[5.0, 0.0, 3.0, 0.0, 1.0, 1.0], [0.0, 4.0, 0.0, -2.0, 1.0, 1.0]];
    let mut states = Vec::new();
    let mut messages = Vec::new();
    for x in &tensors {
        let (mut state, mut workspace) = (codec.init_state(x.len()).unwrap(), Workspace::default());
        let (mut frame, mut split, mut message) = (Vec::new(), Split::default(), Vec::new());
        codec.encode_into(Input::F32(x), &mut state, None, &mut workspace, &mut frame).unwrap();
        let frame = Frame::parse(&frame, None).unwrap();
        frame.split(&[0, SUMS as u64, 6], &mut split).unwrap();
        frame.write_part(&split, &split.parts()[0], &mut message).unwrap();
        messages.push(message);
        states.push(state);
    }
    let mut rest: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    let state = &mut states[1];
    let mut owned = [Owned { codec: &codec, state, range: 0..SUMS, unused: false }];
    let (mut out, mut merged) = (Vec::new(), Vec::new());
    merge(&mut rest, &mut owned, &mut MergeScratch::default(), &mut out, &mut merged).unwrap();
    let mut sums = vec![0.0; SUMS];
    let frame = Frame::parse(&out, None).unwrap();
    frame.decode_into(&mut sums, &mut Decoding::default()).unwrap();
    (sums, merged[0].count, states[1].residual().unwrap().to_vec())
}

#[test]
fn an_owner_sends_all_sums_where_all_entries_are_asked_for_and_else_six_for_five_of_a_rank() {
    let all = vec![5.0, 4.0, 3.0, -2.0];
    for amount in [Amount::Ratio(1.0), Amount::Count(6), Amount::Count(7)] {
        let top = Sparsifier::TopK(TopK { amount });
        assert!(top.asks_for_all(6));
        assert_eq!(merged(top), (all.clone(), 4, vec![0.0; 6]));
    }
    // Each rank sends two entries there: the three largest sums go, and the other stays here. What
    // the owner has not sent, 1 of the second entry, takes part.
    for other in [
        Sparsifier::TopK(TopK { amount: Amount::Count(5) }),
        Sparsifier::Threshold(Threshold { threshold: 0.0 }),
    ] {
        assert!(!other.asks_for_all(6));
        let (sums, count, left) = merged(other);
        assert_eq!((sums, count), (vec![5.0, 4.0, 3.0, 0.0], 3));
        assert_eq!(left, [0.0, 0.0, 0.0, -2.0, 0.0, 0.0]);
    }
}
