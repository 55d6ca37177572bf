//! Bytes that nobody should have sent: a typed error or a valid tensor, never a panic, never a
//! write before all is known to be good.

mod common;

use common::{Case, cases};
use gradwire_core::Error;
use gradwire_core::frame::{Frame, HEADER_LEN, Scratch, Split};
use proptest::prelude::*;

/// Puts the right checksum into a frame that was tampered with.
fn reseal(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_LEN {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Decodes in every way there is, and holds each to its word.
fn judge(bytes: &[u8]) -> Result<(), Error> {
    // More than any golden frame has; a forged one may claim 2^32.
    const LIMIT: u64 = 1 << 22;
    let frame = Frame::parse(bytes, Some(LIMIT))?;
    let header = frame.header();
    let numel = header.numel as usize;
    assert!(header.count <= header.numel && header.numel <= LIMIT);
    assert!(header.count <= 8 * bytes.len() as u64, "entries are paid for in bits");

    let (mut indices, mut values) = (Vec::new(), Vec::new());
    let listed = frame.indices_into(&mut indices).and_then(|()| frame.values_into(&mut values));
    assert!(indices.capacity() <= 16 * bytes.len(), "memory follows the bytes received");
    let mut scratch = Scratch::default();
    let mut out = vec![7.0; numel];
    let decoded = frame.decode_into(&mut out, &mut scratch);
    assert_eq!(
        listed.is_ok(),
        decoded.is_ok(),
        "lists and tensors are good together or bad together"
    );
    let split = split_and_decode(&frame);
    assert_eq!(split.is_ok(), decoded.is_ok(), "what decodes can be split, and nothing else");
    if decoded.is_err() {
        assert!(out.iter().all(|&v| v == 7.0), "nothing is written before all is checked");
        let added = frame.decode_add(&mut out, 2.0, &mut scratch);
        assert_eq!(added, decoded);
        assert!(out.iter().all(|&v| v == 7.0), "nothing is added before all is checked");
        return decoded;
    }
    assert_eq!(indices.len() as u64, header.count);
    assert!(indices.is_sorted_by(|a, b| a < b));
    assert!(values.iter().all(|v| v.is_finite()));
    let mut naive = vec![0.0; numel];
    indices.iter().zip(&values).for_each(|(&i, &v)| naive[i as usize] = v);
    assert!(out.iter().zip(&naive).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert!(out.iter().zip(&split?).all(|(a, b)| a.to_bits() == b.to_bits()));
    Ok(())
}

/// The tensor of the parts of a frame.
fn split_and_decode(frame: &Frame<'_>) -> Result<Vec<f32>, Error> {
    let numel = frame.header().numel;
    let bounds = [0, numel / 7, numel / 3, numel / 3, numel];
    let (mut split, mut out, mut tensor) = (Split::default(), Vec::new(), Vec::new());
    frame.split(&bounds, &mut split)?;
    for part in split.parts() {
        frame.write_part(&split, part, &mut out)?;
        let from = tensor.len();
        tensor.resize(from + part.numel() as usize, 7.0);
        Frame::parse(&out, None)?.decode_into(&mut tensor[from..], &mut Scratch::default())?;
    }
    Ok(tensor)
}

fn is_typed(error: &Error) -> bool {
    use Error::{Corrupt, Outside, TooLarge, Truncated, Unsupported};
    let bytes = matches!(error, Corrupt { .. } | TooLarge { .. } | Truncated { .. });
    bytes || matches!(error, Unsupported { .. } | Outside { .. })
}

/// Frames small enough to try every change to them.
fn small() -> impl Iterator<Item = (Case, Vec<u8>)> {
    cases()
        .into_iter()
        .map(|case| {
            let bytes = case.read();
            (case, bytes)
        })
        .filter(|(_, bytes)| bytes.len() <= 320)
}

#[test]
fn every_golden_frame_passes_the_judge() {
    for case in cases() {
        assert_eq!(judge(&case.read()), Ok(()), "{}", case.name);
    }
}

#[test]
fn every_prefix_is_truncated() {
    for (case, bytes) in small() {
        for len in 0..bytes.len() {
            let error = judge(&bytes[..len]).unwrap_err();
            assert!(matches!(error, Error::Truncated { .. }), "{} at {len}: {error}", case.name);
            // Even one whose checksum is that of the prefix.
            let mut sealed = bytes[..len].to_vec();
            reseal(&mut sealed);
            let error = judge(&sealed).unwrap_err();
            assert!(matches!(error, Error::Truncated { .. }), "{} at {len}: {error}", case.name);
        }
    }
}

#[test]
fn bytes_after_the_frame_are_corrupt() {
    for (case, mut bytes) in small() {
        bytes.push(0);
        reseal(&mut bytes);
        let error = judge(&bytes).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{}: {error}", case.name);
    }
}

#[test]
fn every_single_bit_flip_is_an_error() {
    for (case, bytes) in small() {
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = judge(&bad).unwrap_err();
            assert!(is_typed(&error), "{}, bit {bit}: {error}", case.name);
        }
    }
}

/// With the checksum put right, what the structure allows is another frame, and nothing else is.
#[test]
fn every_single_bit_flip_with_a_good_checksum_is_an_error_or_another_frame() {
    let (mut good, mut refused) = (0, 0);
    for (case, bytes) in small() {
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            reseal(&mut forged);
            match judge(&forged) {
                Ok(()) => good += usize::from(forged != bytes),
                Err(error) => {
                    assert!(is_typed(&error), "{}, bit {bit}: {error}", case.name);
                    refused += 1;
                }
            }
        }
    }
    // Most bits of a value section make another value; most bits of a header make nonsense.
    assert!(good > 1000 && refused > 1000, "{good} good, {refused} refused");
}

/// Each field of the header, set to what it must not be.
#[test]
fn forged_headers_are_refused_for_what_is_wrong_with_them() {
    let forge_in = |name: &str, at: usize, field: &[u8]| {
        let mut forged = cases().into_iter().find(|case| case.name == name).unwrap().read();
        forged[at..at + field.len()].copy_from_slice(field);
        reseal(&mut forged);
        judge(&forged).unwrap_err()
    };
    let forge = |at, field: &[u8]| forge_in("worked_example", at, field);
    let unsupported = |what, found| Error::Unsupported { what, found };
    assert_eq!(forge(3, &[2]), unsupported("version", 2));
    assert_eq!(forge(4, &[1]), unsupported("flags", 1));
    assert_eq!(forge(5, &[4]), unsupported("dtype", 4));
    assert_eq!(forge(7, &[99]), unsupported("quantizer", 99));
    assert_eq!(forge(8, &[99]), unsupported("index coding", 99));
    let huge = u64::MAX.to_le_bytes();
    let truncated = |error: &Error| matches!(error, Error::Truncated { .. });
    let too_large = |error: &Error| matches!(error, Error::TooLarge { .. });
    let corrupt = |error: &Error| matches!(error, Error::Corrupt { .. });
    assert!(corrupt(&forge(0, b"GWX")));
    assert!(corrupt(&forge(9, &[32])), "a low part of 32 bits");
    assert!(corrupt(&forge_in("bitmap_bfloat16", 9, &[1])), "a bitmap with a parameter");
    assert!(corrupt(&forge_in("dense_bfloat16", 9, &[1])), "a dense frame with a parameter");
    assert!(corrupt(&forge(10, &[1])), "bfloat16 with an exponent");
    assert!(corrupt(&forge(7, &[3, 1, 2, 165])), "an exponent above the range");
    assert!(too_large(&forge(16, &huge)));
    assert!(too_large(&forge(16, &(1_u64 << 32).to_le_bytes())));
    assert!(corrupt(&forge(16, &3_u64.to_le_bytes())), "more entries than elements");
    for count in [0, 3, 5, 20, 1 << 32, 1 << 63, u64::MAX / 2 + 3, u64::MAX] {
        assert!(corrupt(&forge(24, &u64::to_le_bytes(count))), "{count} entries");
    }
    assert!(corrupt(&forge(32, &huge)), "lengths that overflow");
    assert!(truncated(&forge(32, &(1_u64 << 40).to_le_bytes())));
    assert!(truncated(&forge(40, &9_u64.to_le_bytes())));
    // One byte moved from a section to the other.
    let moved = [3_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
    assert!(corrupt(&forge(32, &moved)));
}

/// Sections that begin with parameters: chunks and their entries, or a way to draw and a key.
#[test]
fn parameters_of_index_sections_are_checked() {
    let forge_in = |name: &str, at: usize, field: &[u8]| {
        let mut forged = cases().into_iter().find(|case| case.name == name).unwrap().read();
        forged[at..at + field.len()].copy_from_slice(field);
        reseal(&mut forged);
        judge(&forged)
    };
    let corrupt = |result| matches!(result, Err(Error::Corrupt { .. }));
    let chunks = |size: u32, k: u32| {
        let field = [size.to_le_bytes(), k.to_le_bytes()].concat();
        corrupt(forge_in("chunk_local_float32", 48, &field))
    };
    for (size, k) in [(0, 0), (0, 1), (1, 1), (16, 0), (16, 16), (16, 17), (1 << 31, 1)] {
        assert!(chunks(size, k), "{k} of {size}");
    }
    for (size, k) in [((1 << 31) + 1, 1), (u32::MAX, u32::MAX - 1), (16, 2), (15, 1), (17, 1)] {
        assert!(chunks(size, k), "{k} of {size}");
    }
    // Entries that leave their chunk or the tensor.
    assert!(corrupt(forge_in("chunk_local_float32", 16, &1601_u64.to_le_bytes())));
    assert!(corrupt(forge_in("chunk_local_float32", 16, &1617_u64.to_le_bytes())));
    for name in ["chunk_local_float32", "seeded_subset_float32", "seeded_run_bfloat16"] {
        assert!(corrupt(forge_in(name, 9, &[1])), "{name} has no parameter");
        for count in [0_u64, 1, 1 << 20, 1 << 40] {
            assert!(corrupt(forge_in(name, 24, &count.to_le_bytes())), "{name}, {count} entries");
        }
        // A byte moved to the other section.
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        let header = *Frame::parse(&case.read(), None).unwrap().header();
        let moved = [header.index_len - 1, header.value_len + 1].map(u64::to_le_bytes).concat();
        assert!(corrupt(forge_in(name, 32, &moved)));
    }
    for kind in 2..=u8::MAX {
        assert!(corrupt(forge_in("seeded_run_bfloat16", 48, &[kind])));
    }
    // Any key draws something, of any tensor.
    for key in [0, 1, u64::MAX, 0x5555_5555_5555_5555] {
        for name in ["seeded_subset_float32", "seeded_majority_bfloat16", "seeded_run_bfloat16"] {
            assert_eq!(forge_in(name, 49, &u64::to_le_bytes(key)), Ok(()));
            assert_eq!(forge_in(name, 16, &(1_u64 << 22).to_le_bytes()), Ok(()));
        }
    }
}

#[test]
fn values_that_are_not_finite_are_refused_wherever_they_are() {
    let not_finite: [(&str, usize, &[u8]); 4] = [
        ("dense_float32", 4, &[0, 0, 0x80, 0x7F]),
        ("elias_fano_bfloat16", 2, &[0xC0, 0xFF]),
        ("rice_float16", 2, &[0, 0x7C]),
        ("bitmap_float16_scaled", 2, &[1, 0xFE]),
    ];
    for (name, size, code) in not_finite {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        let bytes = case.read();
        for entry in 0..case.count as usize {
            let mut forged = bytes.clone();
            let at = bytes.len() - size * (entry + 1);
            forged[at..at + size].copy_from_slice(code);
            reseal(&mut forged);
            assert!(matches!(judge(&forged), Err(Error::Corrupt { .. })), "{name}, {entry}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(judge(&bytes).is_err());
    }

    /// A header whose fields agree, but for the odd one, before sections that are anything.
    #[test]
    fn random_sections_under_a_good_header_are_judged(
        (quantizer, coding, width) in (0..4_u8, 1..4_u8, 0..33_u8),
        (numel, count) in (1..600_u64, 1..40_u64),
        sections in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 400),
        rice_len in 0..80_u64,
        off in prop_oneof![9 => Just(0), 1 => 1..3_u64],
    ) {
        let (parameter, index_len) = match coding {
            1 => (width, (count * u64::from(width) + count + ((numel - 1) >> width)).div_ceil(8)),
            2 => (width, rice_len),
            _ => (0, numel.div_ceil(8)),
        };
        let value_len = count * if quantizer == 0 { 4 } else { 2 } + off;
        let mut bytes = vec![b'G', b'W', b'F', 1, 0, 0, 0, quantizer, coding, parameter];
        bytes.extend([0; 6]);
        for field in [numel, count, index_len, value_len] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(sections.iter().take((index_len + value_len) as usize));
        reseal(&mut bytes);
        if let Err(error) = judge(&bytes) {
            prop_assert!(is_typed(&error), "{}", error);
        }
    }
}
