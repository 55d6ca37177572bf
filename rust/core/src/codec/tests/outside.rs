//! Values coded outside of this crate: what a built-in codec does of the same codes, and errors that
//! leave no trace.

use super::*;
use crate::codec::outside::{CodeValues, EXTRA_BYTES};
use crate::frame::outside::{Coded, Values, head_len, reframe};
use half::bf16;

const SEEDED: Storage = Storage::BFloat16 { seed: 9 };

fn memories() -> [Memory; 6] {
    let rounded = Residual { storage: SEEDED, ..Residual::PLAIN };
    let filtered = LowPass { beta: 0.3, storage: SEEDED };
    let all = [FEEDBACK, low_pass(0.3), MOMENTUM.into(), rounded.into(), filtered.into()];
    [[Memory::None].as_slice(), &all].concat().try_into().unwrap()
}

/// The codes of bfloat16, as if they were somebody else's.
#[derive(Default)]
struct Halves {
    /// What is to go wrong.
    fault: Option<Fault>,
    calls: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Error,
    TooFewValues,
    NotFinite,
    TooLong,
    LessThanABit,
}

impl CodeValues for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn bits(&self) -> u32 {
        16
    }

    fn encode(&mut self, values: &[f32], data: &mut Vec<u8>, decoded: &mut Vec<f32>) -> Result<()> {
        self.calls += 1;
        // By the crate's own rounding, which saturates.
        let codec = halves(Sparsifier::All, Memory::None);
        let (frame, _) = encode(&codec, values, &mut codec.init_state(values.len())?);
        let frame = Frame::parse(&frame, None)?;
        frame.values_into(decoded)?;
        *data = frame.value_section().to_vec();
        match self.fault {
            None => {}
            Some(Fault::Error) => {
                return Err(Error::Coder { reason: "it does not want to".to_owned() });
            }
            Some(Fault::TooFewValues) => drop(decoded.pop()),
            Some(Fault::NotFinite) => decoded[0] = f32::NAN,
            Some(Fault::TooLong) => data.resize(data.len() + EXTRA_BYTES + 1, 0),
            Some(Fault::LessThanABit) => data.clear(),
        }
        Ok(())
    }
}

fn halves(sparsifier: Sparsifier, memory: Memory) -> Codec {
    of(sparsifier, Quantizer::BFloat16, memory)
}

/// The frame as this crate reads it, once somebody has read the values.
fn read(bytes: &[u8]) -> Vec<u8> {
    let frame = Frame::parse(bytes, None).unwrap();
    let Some(Coded { name, data }) = frame.outside() else { return bytes.to_vec() };
    assert_eq!(name, "halves");
    let halves = data.as_chunks().0.iter();
    let values: Vec<f32> = halves.map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect();
    let mut out = Vec::new();
    reframe(&frame, Values::Plain(&values), None, &mut (&mut out).into()).unwrap();
    assert!(Frame::parse(&out, None).unwrap().outside().is_none());
    out
}

fn encode_outside(
    codec: &Codec,
    x: &[f32],
    state: &mut State,
    max_len: Option<usize>,
    coder: &mut Halves,
) -> (Result<Encoded>, Vec<u8>) {
    let (mut out, mut workspace) = (vec![7], Workspace::default());
    let input = Input::F32(x);
    let encoded =
        codec.encode_outside(input, state, None, max_len, coder, &mut workspace, &mut out);
    (encoded, out)
}

#[test]
fn the_same_codes_from_outside_leave_the_same_memory() {
    let len = 3000;
    for memory in memories() {
        for sparsifier in sparsifiers() {
            if !go_together(sparsifier, Quantizer::Float32, memory) {
                continue;
            }
            let own = halves(sparsifier, memory);
            let codec = exact(sparsifier, memory);
            let mut expected = own.init_state(len).unwrap();
            let mut state = codec.init_state(len).unwrap();
            let mut values = Halves::default();
            for step in 0..3 {
                let x = gradient(len, step);
                let (frame, encoded) = encode(&own, &x, &mut expected);
                let (found, out) = encode_outside(&codec, &x, &mut state, None, &mut values);
                assert_eq!(found.unwrap(), Encoded { nbytes: out.len(), ..encoded });
                assert!(out.len() <= codec.max_len_outside(len, None, "halves", 16));
                let (ours, theirs) = (decode(&read(&out), len), decode(&frame, len));
                assert_eq!(bits(&ours), bits(&theirs));
                assert_eq!(contents(&state), contents(&expected));
            }
            assert!(state.can_roll_back());
        }
    }
}

#[test]
fn without_its_reader_a_frame_names_who_can_read_it() {
    let x = gradient(500, 3);
    let codec = exact(top(40), FEEDBACK);
    let mut state = codec.init_state(500).unwrap();
    let (_, bytes) = encode_outside(&codec, &x, &mut state, None, &mut Halves::default());
    let frame = Frame::parse(&bytes, None).unwrap();
    let (mut out, mut scratch) = (vec![7.0; 500], Scratch::default());
    let error = Error::Outside { name: "halves".to_owned() };
    assert_eq!(frame.decode_into(&mut out, &mut scratch), Err(error.clone()));
    assert_eq!(frame.decode_add(&mut out, 1.0, &mut scratch), Err(error.clone()));
    assert_eq!(frame.values_into(&mut Vec::new()), Err(error));
    assert!(out.iter().all(|&v| v == 7.0));
    assert!(frame.indices_into(&mut Vec::new()).is_ok());
}

#[test]
fn what_goes_wrong_outside_leaves_no_trace() {
    let x = gradient(1000, 9);
    for memory in memories() {
        let codec = exact(top_ratio(0.1), memory);
        let mut state = codec.init_state(1000).unwrap();
        encode_outside(&codec, &x, &mut state, None, &mut Halves::default()).0.unwrap();
        let before = contents(&state);
        for fault in [
            Fault::Error,
            Fault::TooFewValues,
            Fault::NotFinite,
            Fault::TooLong,
            Fault::LessThanABit,
        ] {
            let mut values = Halves { fault: Some(fault), calls: 0 };
            let (found, out) = encode_outside(&codec, &x, &mut state, None, &mut values);
            assert!(matches!(found, Err(Error::Coder { .. })), "{found:?}");
            assert!(out.is_empty());
            assert_eq!(contents(&state), before);
        }
    }
}

#[test]
fn a_frame_is_made_to_fit_and_keeps_the_largest() {
    let x = gradient(4000, 5);
    let codec = exact(top_ratio(0.2), FEEDBACK);
    for limit in [48, 60, 100, 333, 1000, 1999] {
        let mut state = codec.init_state(4000).unwrap();
        let mut values = Halves::default();
        let (found, out) = encode_outside(&codec, &x, &mut state, Some(limit), &mut values);
        let encoded = found.unwrap();
        assert!(out.len() <= limit);
        assert_eq!(encoded.count + encoded.trimmed, 800);
        let sent = decode(&read(&out), 4000);
        let least = sent.iter().filter(|v| **v != 0.0).fold(f32::MAX, |m, v| m.min(v.abs()));
        let left = state.residual().unwrap();
        assert!(left.iter().zip(&x).zip(&sent).all(|((l, x), s)| *l == reference::kept(x - s)));
        let most = left.iter().zip(&sent).filter(|(_, s)| **s == 0.0);
        assert!(most.fold(0.0_f32, |m, (v, _)| m.max(v.abs())) <= least * 1.01);
        assert!(limit < 100 || out.len() * 10 > limit * 7, "{} of {limit}", out.len());
        assert!(values.calls <= 10);
    }
    let (all, mut values) = (exact(Sparsifier::All, FEEDBACK), Halves::default());
    let mut state = all.init_state(4000).unwrap();
    let (found, _) = encode_outside(&all, &x, &mut state, Some(8000), &mut values);
    let need = 48 + head_len("halves") as u64 + 8000;
    assert_eq!(found, Err(Error::LimitTooSmall { limit: 8000, need }));
    assert!(state.residual().unwrap().iter().all(|&v| v == 0.0));
}

#[test]
fn values_from_outside_are_carried_exactly_or_not_at_all() {
    let codec = halves(Sparsifier::All, Memory::None);
    let (mut state, mut values) = (codec.init_state(3).unwrap(), Halves::default());
    let (found, _) = encode_outside(&codec, &[1.0; 3], &mut state, None, &mut values);
    assert!(matches!(found, Err(Error::Argument { .. })));
}
