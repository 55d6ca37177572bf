//! Sections coded outside of this crate: what a built-in codec does of the same codes, and errors that
//! leave no trace.

use super::*;
use crate::frame::outside::{self, Coded, Indices, Values, reframe};
use crate::memory::MomentumCorrection;
use crate::memory::Storage;
use half::bf16;

const LOW_PASS: Memory =
    Memory::LowPass(crate::memory::LowPass { beta: 0.3, ..crate::memory::LowPass::PLAIN });
const SEEDED: Storage = Storage::BFloat16 { seed: 9 };
const ROUNDED: Memory = Memory::Residual(Residual { storage: SEEDED, ..Residual::PLAIN });
const FILTERED: Memory = Memory::LowPass(crate::memory::LowPass { beta: 0.3, storage: SEEDED });
const MOMENTUM: Memory = Memory::MomentumCorrection(MomentumCorrection {
    momentum: 0.9,
    nesterov: false,
    masking: true,
    clip: None,
});

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

impl outside_codec::CodeValues for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn max_len(&mut self, count: u64) -> Result<usize> {
        Ok(2 * count as usize)
    }

    fn encode(&mut self, values: &[f32], data: &mut Vec<u8>, decoded: &mut Vec<f32>) -> Result<()> {
        self.calls += 1;
        let (codec, mut state) = (halves(Sparsifier::All, Memory::None), Vec::new());
        // By the crate's own rounding, which saturates.
        let mut fresh = codec.init_state(values.len())?;
        codec.encode_into(
            Input::F32(values),
            &mut fresh,
            None,
            &mut Workspace::default(),
            &mut state,
        )?;
        let frame = Frame::parse(&state, None)?;
        frame.values_into(decoded)?;
        *data = frame.value_section().to_vec();
        match self.fault {
            None => {}
            Some(Fault::Error) => {
                return Err(Error::Coder { reason: "it does not want to".to_owned() });
            }
            Some(Fault::TooFewValues) => drop(decoded.pop()),
            Some(Fault::NotFinite) => decoded[0] = f32::NAN,
            Some(Fault::TooLong) => data.push(0),
            Some(Fault::LessThanABit) => data.clear(),
        }
        Ok(())
    }
}

use super::super::outside as outside_codec;

/// Positions as they are, in four bytes each.
struct Plain;

impl outside_codec::CodeIndices for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn max_len(&mut self, _: u64, count: u64) -> Result<usize> {
        Ok(4 * count as usize)
    }

    fn encode(&mut self, positions: &[u32], _: u64, data: &mut Vec<u8>) -> Result<()> {
        data.clear();
        data.extend(positions.iter().flat_map(|position| position.to_le_bytes()));
        Ok(())
    }
}

fn halves(sparsifier: Sparsifier, memory: Memory) -> Codec {
    Codec::new(sparsifier, Quantizer::BFloat16, memory, IndexCoding::Auto).unwrap()
}

/// The frame as this crate reads it, once somebody has read what is coded outside.
fn read(bytes: &[u8]) -> Vec<u8> {
    let frame = Frame::parse(bytes, None).unwrap();
    let coded = frame.outside();
    let positions: Option<Vec<u32>> = coded.indices.map(|Coded { name, data }| {
        assert_eq!(name, "plain");
        data.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    });
    let values: Option<Vec<f32>> = coded.values.map(|Coded { name, data }| {
        assert_eq!(name, "halves");
        let halves = data.as_chunks().0.iter();
        halves.map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
    });
    let mut out = Vec::new();
    let indices = positions.as_deref().map_or(Indices::Same, Indices::Plain);
    let values = values.as_deref().map_or(Values::Same, Values::Plain);
    reframe(&frame, indices, values, None, &mut (&mut out).into()).unwrap();
    assert!(Frame::parse(&out, None).unwrap().outside().is_none());
    out
}

fn encode_outside(
    codec: &Codec,
    x: &[f32],
    state: &mut State,
    max_len: Option<usize>,
    coders: &mut outside_codec::Coders<'_>,
) -> (Result<Encoded>, Vec<u8>) {
    let (mut out, mut workspace) = (vec![7], Workspace::default());
    let input = Input::F32(x);
    let encoded =
        codec.encode_outside(input, state, None, max_len, coders, &mut workspace, &mut out);
    (encoded, out)
}

fn bits(values: Option<&[f32]>) -> Option<Vec<u32>> {
    values.map(|values| values.iter().map(|v| v.to_bits()).collect())
}

/// The bits of a residual of either type.
fn stored(state: &State) -> Option<Vec<u32>> {
    Some(match state.stored_residual()? {
        Input::F32(values) => values.iter().map(|value| value.to_bits()).collect(),
        Input::BF16(values) => values.iter().map(|value| value.to_bits().into()).collect(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn the_same_codes_from_outside_leave_the_same_memory() {
    let len = 3000;
    for memory in [Memory::None, FEEDBACK, LOW_PASS, MOMENTUM, ROUNDED, FILTERED] {
        for sparsifier in sparsifiers() {
            if Codec::new(sparsifier, Quantizer::Float32, memory, IndexCoding::Auto).is_err() {
                continue;
            }
            for (inside_indices, outside_values) in [(true, true), (false, true), (false, false)] {
                let own = halves(sparsifier, memory);
                let quantizer =
                    if outside_values { Quantizer::Float32 } else { Quantizer::BFloat16 };
                let codec = Codec::new(sparsifier, quantizer, memory, IndexCoding::Auto).unwrap();
                let mut expected = own.init_state(len).unwrap();
                let mut state = codec.init_state(len).unwrap();
                let (mut values, mut indices) = (Halves::default(), Plain);
                for step in 0..3 {
                    let x = gradient(len, step);
                    let (frame, encoded) = encode(&own, &x, &mut expected);
                    let mut coders = outside_codec::Coders::default();
                    if outside_values {
                        coders.values = Some(&mut values);
                    }
                    if !inside_indices {
                        coders.indices = Some(&mut indices);
                    }
                    let (found, out) = encode_outside(&codec, &x, &mut state, None, &mut coders);
                    assert_eq!(found.unwrap(), Encoded { nbytes: out.len(), ..encoded });
                    assert!(out.len() <= codec.max_len_outside(len, None, &mut coders).unwrap());
                    let (ours, theirs) = (decode(&read(&out), len), decode(&frame, len));
                    assert_eq!(bits(Some(&ours)), bits(Some(&theirs)));
                    assert_eq!(stored(&state), stored(&expected));
                    assert_eq!(bits(state.momentum()), bits(expected.momentum()));
                    assert_eq!(state.scalars(), expected.scalars());
                }
                assert!(state.can_roll_back());
            }
        }
    }
}

#[test]
fn without_its_reader_a_frame_names_who_can_read_it() {
    let x = gradient(500, 3);
    let codec = Codec::new(
        Sparsifier::TopK(TopK { amount: Amount::Count(40) }),
        Quantizer::Float32,
        FEEDBACK,
        IndexCoding::Auto,
    );
    let codec = codec.unwrap();
    let mut state = codec.init_state(500).unwrap();
    let (mut values, mut indices) = (Halves::default(), Plain);
    let mut out = vec![7.0; 500];
    for (both, what, name) in [(false, "quantizer", "halves"), (true, "index coding", "plain")] {
        let mut coders = outside_codec::Coders { values: Some(&mut values), indices: None };
        if both {
            coders.indices = Some(&mut indices);
        }
        let (_, bytes) = encode_outside(&codec, &x, &mut state, None, &mut coders);
        let frame = Frame::parse(&bytes, None).unwrap();
        let error = Error::Outside { what, name: name.to_owned() };
        assert_eq!(frame.decode_into(&mut out, &mut Scratch::default()), Err(error.clone()));
        assert_eq!(frame.decode_add(&mut out, 1.0, &mut Scratch::default()), Err(error.clone()));
        assert_eq!(frame.values_into(&mut Vec::new()), Err(error));
        assert!(out.iter().all(|&v| v == 7.0));
        let mut positions = Vec::new();
        assert_eq!(frame.indices_into(&mut positions).is_ok(), !both);
    }
}

#[test]
fn what_goes_wrong_outside_leaves_no_trace() {
    let x = gradient(1000, 9);
    for memory in [Memory::None, FEEDBACK, LOW_PASS, MOMENTUM, ROUNDED, FILTERED] {
        let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.1) });
        let codec = Codec::new(top, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        let mut state = codec.init_state(1000).unwrap();
        let mut values = Halves::default();
        let mut coders = outside_codec::Coders { values: Some(&mut values), indices: None };
        encode_outside(&codec, &x, &mut state, None, &mut coders).0.unwrap();
        let (residual, scalars) = (bits(state.residual()), state.scalars());
        for fault in [
            Fault::Error,
            Fault::TooFewValues,
            Fault::NotFinite,
            Fault::TooLong,
            Fault::LessThanABit,
        ] {
            let mut values = Halves { fault: Some(fault), calls: 0 };
            let mut coders = outside_codec::Coders { values: Some(&mut values), indices: None };
            let (found, out) = encode_outside(&codec, &x, &mut state, None, &mut coders);
            assert!(matches!(found, Err(Error::Coder { .. })), "{found:?}");
            assert!(out.is_empty());
            assert_eq!(bits(state.residual()), residual);
            assert_eq!(state.scalars(), scalars);
        }
    }
}

#[test]
fn a_frame_is_made_to_fit_and_keeps_the_largest() {
    let x = gradient(4000, 5);
    for memory in [FEEDBACK] {
        let top = Sparsifier::TopK(TopK { amount: Amount::Ratio(0.2) });
        let codec = Codec::new(top, Quantizer::Float32, memory, IndexCoding::Auto).unwrap();
        for limit in [48, 60, 100, 333, 1000, 1999] {
            let mut state = codec.init_state(4000).unwrap();
            let (mut values, mut indices) = (Halves::default(), Plain);
            let mut coders = outside_codec::Coders {
                values: Some(&mut values),
                indices: if limit % 2 == 0 { None } else { Some(&mut indices) },
            };
            let (found, out) = encode_outside(&codec, &x, &mut state, Some(limit), &mut coders);
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
        let all = Codec::new(Sparsifier::All, Quantizer::Float32, memory, IndexCoding::Auto);
        let (all, mut values) = (all.unwrap(), Halves::default());
        let mut state = all.init_state(4000).unwrap();
        let mut coders = outside_codec::Coders { values: Some(&mut values), indices: None };
        let (found, _) = encode_outside(&all, &x, &mut state, Some(8000), &mut coders);
        let need = 48 + outside::head_len("halves") as u64 + 8000;
        assert_eq!(found, Err(Error::LimitTooSmall { limit: 8000, need }));
        assert!(state.residual().unwrap().iter().all(|&v| v == 0.0));
    }
}

#[test]
fn values_from_outside_are_carried_exactly_or_not_at_all() {
    let codec = halves(Sparsifier::All, Memory::None);
    let (mut state, mut values) = (codec.init_state(3).unwrap(), Halves::default());
    let mut coders = outside_codec::Coders { values: Some(&mut values), indices: None };
    let (found, _) = encode_outside(&codec, &[1.0; 3], &mut state, None, &mut coders);
    assert!(matches!(found, Err(Error::Argument { .. })));
}
