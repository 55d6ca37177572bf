//! What the text of the frame format says and golden frames do not show: signs of zeros, scales,
//! lengths, the order of checks, and the keys of what is drawn. See `docs/frame-format.md`.

#![allow(clippy::unwrap_used, reason = "helpers outside of #[test] functions, too")]
#![allow(clippy::disallowed_methods, reason = "powers of two are exact, and bounds need not be")]

use gradwire_core::codec::{Codec, State, Workspace};
use gradwire_core::frame::{Frame, HEADER_LEN, Scratch};
use gradwire_core::memory::Memory;
use gradwire_core::pack::IndexCoding;
use gradwire_core::quantize::{Exponent, Float8, Format, Norm, Quantizer, Rounding, Uniform};
use gradwire_core::rng::tensor_id;
use gradwire_core::sparsify::{Amount, RandomK, Sparsifier};
use gradwire_core::{Error, Input};

/// What stands in the header, but for the lengths.
#[derive(Clone, Copy)]
struct Head {
    dtype: u8,
    quantizer: u8,
    coding: [u8; 2],
    numel: u64,
    count: u64,
}

const DENSE: Head = Head { dtype: 0, quantizer: 0, coding: [0, 0], numel: 2, count: 2 };

/// A frame written from the text alone.
fn forged(head: Head, indices: &[u8], values: &[u8]) -> Vec<u8> {
    let mut out = b"GWF\x01\x00".to_vec();
    out.extend([head.dtype, 0, head.quantizer, head.coding[0], head.coding[1], 0, 0]);
    out.extend([0; 4]);
    for number in [head.numel, head.count, indices.len() as u64, values.len() as u64] {
        out.extend(number.to_le_bytes());
    }
    assert_eq!(out.len(), HEADER_LEN);
    out.extend(indices);
    out.extend(values);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out[..12]), &out[16..]);
    out[12..16].copy_from_slice(&sum.to_le_bytes());
    out
}

/// A dense frame of two entries with this value section: prologue, scales, codes.
fn two(quantizer: u8, prologue: &[u8], scales: &[f32], codes: &[u8]) -> Vec<u8> {
    let mut section = prologue.to_vec();
    section.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    section.extend(codes);
    forged(Head { quantizer, ..DENSE }, &[], &section)
}

fn decoded(frame: &[u8]) -> Result<Vec<u32>, Error> {
    let mut out = vec![f32::NAN; 2];
    let frame = Frame::parse(frame, None)?;
    frame.decode_into(&mut out, &mut Scratch::default())?;
    let mut listed = Vec::new();
    frame.values_into(&mut listed)?;
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&out), bits(&listed));
    Ok(bits(&out))
}

const MINUS_ZERO: u32 = 1 << 31;

#[test]
fn a_code_with_a_sign_and_no_magnitude_is_minus_zero() {
    let zero_and_minus_zero = Ok(vec![0, MINUS_ZERO]);
    let block = [1, 0, 0, 0];
    let uniform = [4, 0, 0, 0, 2, 0, 0, 0];
    let codebook = [2, 0, 0, 0, 2, 0, 0, 0];
    for (what, frame) in [
        ("float32", forged(DENSE, &[], &[0, 0, 0, 0, 0, 0, 0, 0x80])),
        ("e5m2", two(4, &block, &[1.0, 1.0], &[0, 0x80])),
        ("e4m3 without scales", two(5, &[0; 4], &[], &[0, 0x80])),
        ("e4m3 with a scale of zero", two(5, &block, &[0.0, 0.0], &[0x08, 0x88])),
        ("uniform level 0", two(6, &uniform, &[3.0], &[0x80])),
        ("uniform with a scale of zero", two(6, &uniform, &[0.0], &[0xF7])),
        ("sign with a scale of zero", two(7, &[], &[0.0], &[0b01])),
        ("means of zero", two(8, &[2, 0, 0, 0], &[-0.0, 0.0], &[0b01])),
        ("codebook", two(10, &codebook, &[0.0, 1.0], &[0b10_00])),
        ("power of two", two(11, &[2, 0, 0, 0], &[1.0], &[0, 0x80])),
        ("power of two with a scale of zero", two(11, &[2, 0, 0, 0], &[0.0], &[0x7F, 0xFF])),
    ] {
        assert_eq!(decoded(&frame), zero_and_minus_zero, "{what}");
    }
    // The code for zero of quantizer 9 has no sign to have; the scale of zero has.
    assert_eq!(decoded(&two(9, &[], &[1.0], &[0b00_00])), Ok(vec![0, 0]));
    assert_eq!(decoded(&two(9, &[], &[0.0], &[0b10_01])), zero_and_minus_zero);
}

#[test]
fn writers_keep_the_sign_of_a_zero_but_where_a_level_has_none() {
    let x = [1.0, -0.0, -1e-40];
    let write = |quantizer| {
        let codec =
            Codec::new(Sparsifier::All, quantizer, Memory::None, IndexCoding::Auto).unwrap();
        let frame = encode(&codec, &x, &mut codec.init_state(3).unwrap());
        let mut values = vec![0.0; 3];
        let parsed = Frame::parse(&frame, None).unwrap();
        parsed.decode_into(&mut values, &mut Scratch::default()).unwrap();
        values.iter().map(|v: &f32| v.to_bits()).collect::<Vec<_>>()
    };
    let one = 1.0_f32.to_bits();
    let float8 = |format| {
        Quantizer::Float8(Float8 { format, rounding: Rounding::Nearest, block: Some(256), seed: 0 })
    };
    let kept = vec![one, MINUS_ZERO, MINUS_ZERO];
    assert_eq!(write(float8(Format::E4M3)), kept);
    assert_eq!(write(float8(Format::E5M2)), kept);
    assert_eq!(write(Quantizer::Exponent(Exponent { seed: 0 })), kept);
    for bits in [2, 8] {
        let uniform = Quantizer::Uniform(Uniform { bits, block: 512, norm: Norm::Max, seed: 0 });
        assert_eq!(write(uniform), [one, 0, 0]);
    }
}

#[test]
fn minus_zero_is_a_scale_of_quantizer_8_alone() {
    let block = [2, 0, 0, 0];
    let bits = [2, 0, 0, 0, 2, 0, 0, 0];
    let codebook = |scale| two(10, &bits, &[scale, 1.0], &[0]);
    let takes = |quantizer, scale: f32| {
        let frame = match quantizer {
            4 | 5 | 11 => two(quantizer, &block, &[scale], &[0, 0]),
            6 => two(6, &bits, &[scale], &[0]),
            7 | 9 => two(quantizer, &[], &[scale], &[0]),
            8 => two(8, &block, &[1.0, scale], &[0]),
            _ => codebook(scale),
        };
        match decoded(&frame) {
            Ok(_) => true,
            Err(Error::Corrupt { .. }) => false,
            Err(other) => panic!("{quantizer} {scale}: {other}"),
        }
    };
    let tiny = f32::from_bits(1);
    for quantizer in 4..=11 {
        assert!(takes(quantizer, 0.0) && takes(quantizer, 1.0), "{quantizer}");
        assert!(!takes(quantizer, f32::NAN) && !takes(quantizer, f32::INFINITY), "{quantizer}");
        for scale in [-0.0, -1.0] {
            assert_eq!(takes(quantizer, scale), quantizer == 8, "{quantizer} {scale}");
        }
        // Subnormal numbers are scales but for powers of two, which begin at 2^-126.
        assert_eq!(takes(quantizer, tiny), quantizer != 11, "{quantizer}");
        let power = [4, 5, 11].contains(&quantizer);
        assert_eq!(takes(quantizer, 3.0), !power, "{quantizer}");
    }
    for (quantizer, highest) in [(4, 112), (5, 119), (11, 127)] {
        assert!(takes(quantizer, 2.0_f32.powi(highest)), "{quantizer}");
        assert!(highest == 127 || !takes(quantizer, 2.0_f32.powi(highest + 1)), "{quantizer}");
    }
}

#[test]
fn rice_sections_are_as_long_as_some_support_makes_them() {
    for (numel, count, width) in
        [(100, 3, 0), (100, 3, 4), (100, 100, 2), (1000, 7, 31), (64, 1, 3), (4_000_000, 5, 10)]
    {
        let least = count * (u64::from(width) + 1);
        let range = least.div_ceil(8)..=(least + ((numel - count) >> width)).div_ceil(8);
        let around = range.start().saturating_sub(2)..range.end() + 3;
        for index_len in around {
            let head = Head { coding: [2, width], numel, count, ..DENSE };
            let values = vec![0; 4 * count as usize];
            let frame = forged(head, &vec![0; index_len as usize], &values);
            let parsed = Frame::parse(&frame, None);
            let taken = !matches!(parsed, Err(Error::Corrupt { .. }));
            assert_eq!(taken, range.contains(&index_len), "{numel} {count} {width} {index_len}");
        }
    }
}

#[test]
fn adding_may_leave_the_range_of_float32_and_is_no_error() {
    let largest = f32::MAX.to_le_bytes();
    let frame = forged(DENSE, &[], &[largest, largest].concat());
    let frame = Frame::parse(&frame, None).unwrap();
    let add = |out: [f32; 2], scale| {
        let mut out = out;
        frame.decode_add(&mut out, scale, &mut Scratch::default()).map(|()| out)
    };
    assert_eq!(add([f32::MAX, -f32::MAX], 1.0), Ok([f32::INFINITY, 0.0]));
    // The product is rounded, and overflows, before it is added.
    assert_eq!(add([-f32::MAX, 0.0], 2.0), Ok([f32::INFINITY; 2]));
    let [lost, kept] = add([f32::NEG_INFINITY, f32::NEG_INFINITY], 2.0).unwrap();
    assert!(lost.is_nan() && kept.is_nan());
}

#[test]
fn faults_up_to_the_checksum_are_found_in_order_and_later_ones_in_any() {
    let good = forged(DENSE, &[], &[0; 8]);
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = good.clone();
        for &(at, byte) in changes {
            bytes[at] = byte;
        }
        Frame::parse(&bytes, None).err()
    };
    let corrupt = |error: Option<Error>| matches!(error, Some(Error::Corrupt { .. }));
    let unsupported = |error: Option<Error>| matches!(error, Some(Error::Unsupported { .. }));
    // Each fault beside all that come after it: magic, version, flags, length, checksum.
    let later = [(5, 99), (40, 9), (4, 1), (3, 2), (0, 0)];
    assert!(corrupt(with(&later)));
    assert!(unsupported(with(&later[..4])));
    assert!(unsupported(with(&later[..3])));
    assert!(matches!(with(&later[..2]), Some(Error::Truncated { .. })));
    // An unknown dtype, and a checksum that does not match it.
    assert!(corrupt(with(&later[..1])));
    // Behind the checksum one of the faults is reported, whichever.
    let head = Head { dtype: 99, quantizer: 99, coding: [9, 9], numel: u64::MAX, count: 3 };
    let several = Frame::parse(&forged(head, &[], &[]), Some(10)).err().unwrap();
    assert!(matches!(
        several,
        Error::Unsupported { .. } | Error::TooLarge { .. } | Error::Corrupt { .. }
    ));
}

/// The finalizer that keys are mixed with.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The key of what a seeded writer draws.
fn key(seed: u64, tensor: u64, step: u64, stream: u64) -> u64 {
    let join = |key: u64, word: u64| mix(key ^ mix(word.wrapping_add(0x9E37_79B9_7F4A_7C15)));
    [tensor, step, stream].into_iter().fold(mix(seed), join)
}

/// Word `t` of a key.
fn word(key: u64, t: u32) -> u32 {
    let f = |x: u32| {
        let x = (x ^ (x >> 16)).wrapping_mul(0x21F0_AAAD);
        let x = (x ^ (x >> 15)).wrapping_mul(0x735A_2D97);
        x ^ (x >> 15)
    };
    f(f(t.wrapping_add(key as u32)).wrapping_add((key >> 32) as u32))
}

fn encode(codec: &Codec, x: &[f32], state: &mut State) -> Vec<u8> {
    let (mut workspace, mut out) = (Workspace::default(), Vec::new());
    codec.encode_into(Input::F32(x), state, None, &mut workspace, &mut out).unwrap();
    out
}

#[test]
fn the_name_of_a_tensor_is_hashed_as_the_text_says() {
    assert_eq!([tensor_id(""), tensor_id("a")], [0, 0xAF63_DC4C_8601_EC8C]);
    assert_eq!(tensor_id("foobar"), 0x8594_4171_F739_67E8);
}

#[test]
fn positions_are_drawn_with_the_key_of_the_step_without_a_stream() {
    let random = RandomK { amount: Amount::Count(50), block: false, seed: 11, scaled: false };
    let codec = Codec::new(
        Sparsifier::RandomK(random),
        Quantizer::Float32,
        Memory::None,
        IndexCoding::Auto,
    )
    .unwrap();
    for stream in [0, 3] {
        let mut state =
            codec.init_state(1000).unwrap().identified(tensor_id("layer.weight"), stream);
        for step in 0..3 {
            let frame = encode(&codec, &[1.0; 1000], &mut state);
            assert_eq!((frame[8], frame[48]), (5, 0));
            let expected = key(11, tensor_id("layer.weight"), step, 0);
            assert_eq!(frame[49..57], expected.to_le_bytes());
        }
    }
}

#[test]
fn values_are_rounded_with_the_key_of_the_step_and_the_stream_inverted() {
    let quantizer = Quantizer::Uniform(Uniform { bits: 2, block: 512, norm: Norm::Max, seed: 11 });
    let codec = Codec::new(Sparsifier::All, quantizer, Memory::None, IndexCoding::Auto).unwrap();
    let mut x = vec![0.5; 100];
    x[0] = 1.0;
    for stream in [0, 3] {
        let mut state = codec.init_state(100).unwrap().identified(tensor_id("bias"), stream);
        for step in 0..3 {
            let frame = encode(&codec, &x, &mut state);
            let mut values = vec![0.0; 100];
            let frame = Frame::parse(&frame, None).unwrap();
            frame.decode_into(&mut values, &mut Scratch::default()).unwrap();
            let key = key(11, tensor_id("bias"), step, !stream);
            for (t, &value) in values.iter().enumerate().skip(1) {
                let up = f64::from(word(key, t as u32) >> 8) / 2.0_f64.powi(24) < 0.5;
                assert_eq!(value, if up { 1.0 } else { 0.0 }, "{stream} {step} {t}");
            }
        }
    }
}

#[test]
fn values_of_another_package_begin_with_their_kind() {
    let values = |section: &[u8]| forged(Head { quantizer: 255, ..DENSE }, &[], section);
    let known = |name: &str| Err(Error::Outside { name: name.to_owned() });
    let longest = "a".repeat(63);
    let mut section = vec![63];
    section.extend(longest.bytes());
    assert_eq!(decoded(&values(b"\x04grid\x07")), known("grid"));
    assert_eq!(decoded(&values(b"\x03a_1")), known("a_1"));
    assert_eq!(decoded(&values(&section)), known(&longest));
    let frame = values(b"\x04grid\x07");
    let mut positions = Vec::new();
    Frame::parse(&frame, None).unwrap().indices_into(&mut positions).unwrap();
    assert_eq!(positions, [0, 1]);
    section[0] = 64;
    section.push(b'a');
    for broken in
        [b"".as_slice(), b"\0", b"\x05grid", b"\x041rid", b"\x04Grid", b"\x04gr-d", &section]
    {
        let found = Frame::parse(&values(broken), None).map(|_| ());
        assert!(matches!(found, Err(Error::Corrupt { .. })), "{broken:?}");
    }
    let head = Head { quantizer: 255, ..DENSE };
    let none = Head { coding: [3, 0], numel: 9, count: 0, ..head };
    assert_eq!(Frame::parse(&forged(none, &[], &[]), None).map(|_| ()), Ok(()));
    for frame in [
        forged(none, &[], b"\x04grid"),
        // Two entries more than bits.
        forged(Head { numel: 42, count: 42, ..head }, &[], b"\x04grid"),
    ] {
        assert!(matches!(Frame::parse(&frame, None), Err(Error::Corrupt { .. })));
    }
    let mut frame = values(b"\x04grid\x07");
    frame[10] = 1;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&frame[..12]), &frame[16..]);
    frame[12..16].copy_from_slice(&sum.to_le_bytes());
    assert!(matches!(Frame::parse(&frame, None), Err(Error::Corrupt { .. })));
}
