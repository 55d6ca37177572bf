//! Frames written once, and read the same by every later version. See `tests/golden/README.md`.

mod common;

use std::collections::BTreeSet;
use std::io::Write;

use common::{Case, cases, directory};
use gradwire_core::frame::{Frame, HEADER_LEN, Scratch};
use gradwire_core::pack::{self, Chunks, Coding, Draw, DrawKind};
use gradwire_core::quantize::QuantizerId;
use gradwire_core::rng::Key;
use gradwire_core::simd::{Kernels, available_levels};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn golden_frames_say_what_the_manifest_says() {
    for case in cases() {
        let name = &case.name;
        let bytes = case.read();
        assert_eq!(bytes.len(), case.length, "{name}");
        let frame =
            Frame::parse(&bytes, Some(case.numel)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let header = frame.header();
        assert_eq!(header.version, 1, "{name}");
        assert_eq!(header.dtype, case.layout.dtype, "{name}");
        assert_eq!(header.sparsifier, case.layout.sparsifier, "{name}");
        let values = case.layout.quantizer.coding(case.numel, 1.0);
        assert_eq!(header.quantizer, values.id(), "{name}");
        assert_eq!(header.coding, case.coding, "{name}");
        assert_eq!(header.exponent, case.exponent, "{name}");
        assert_eq!((header.numel, header.count), (case.numel, case.count), "{name}");
        let sections = header.index_len + header.value_len;
        assert_eq!(HEADER_LEN as u64 + sections, case.length as u64, "{name}");
    }
}

#[test]
fn golden_frames_decode_to_the_bit_on_every_level() {
    let mut scratch = Scratch::default();
    for (case, level) in cases()
        .iter()
        .flat_map(|case| available_levels().into_iter().map(move |level| (case, level)))
    {
        let name = format!("{} {level:?}", case.name);
        let bytes = case.read();
        let frame = Frame::parse(&bytes, None).unwrap().with(Kernels::of(level).unwrap());
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        frame.indices_into(&mut indices).unwrap();
        frame.values_into(&mut values).unwrap();
        assert_eq!(indices, case.indices, "{name}");
        assert_eq!(bits(&values), bits(&case.values), "{name}");

        let tensor = case.tensor();
        let mut out = vec![f32::NAN; tensor.len()];
        frame.decode_into(&mut out, &mut scratch).unwrap();
        assert_eq!(bits(&out), bits(&tensor), "{name}");
        out.fill(1.0);
        frame.decode_add(&mut out, 0.5, &mut scratch).unwrap();
        let sum: Vec<f32> = tensor.iter().map(|v| 1.0 + v * 0.5).collect();
        assert_eq!(bits(&out), bits(&sum), "{name}");
    }
}

/// Frames whose input has been written in fewer bytes since: values that repeat have a table of their own.
const SHORTER_SINCE: [&str; 1] = ["lossless_eight_streams"];

#[test]
fn the_same_input_still_gives_the_same_bytes() {
    for case in cases() {
        let (written, golden) = (case.write(), case.read());
        if SHORTER_SINCE.contains(&case.name.as_str()) {
            assert!(written.len() < golden.len(), "{}", case.name);
        } else {
            assert_eq!(written, golden, "{}", case.name);
        }
    }
}

#[test]
fn the_manifest_names_every_file_and_covers_every_coding_with_every_quantizer() {
    let in_manifest: BTreeSet<_> = cases().iter().map(Case::path).collect();
    let files = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let frames: BTreeSet<_> = files.filter(|p| p.extension().is_some_and(|e| e == "gwf")).collect();
    assert_eq!(in_manifest, frames);
    let id = |c: &Case| c.layout.quantizer.coding(c.numel, 1.0).id();
    let kind = |c: &Case| (std::mem::discriminant(&c.coding), id(c));
    // Codings and quantizers of a section of their own have cases of their own.
    let plain =
        |c: &&Case| !matches!(c.coding, Coding::ChunkLocal(_) | Coding::Seeded(_)) && id(c).0 < 4;
    let cases = cases();
    let covered: std::collections::HashSet<_> = cases.iter().filter(plain).map(kind).collect();
    assert_eq!(covered.len(), 4 * 4);
    let ids: BTreeSet<_> = cases.iter().map(|case| id(case).0).collect();
    assert_eq!(ids, QuantizerId::KNOWN.iter().map(|(id, _)| id.0).collect());
}

#[test]
fn the_writer_chooses_the_kind_of_block_that_a_case_is_there_for() {
    let kinds = [
        ("lossless_low_bits", 12),
        ("lossless_one_float", 13),
        ("lossless_few_floats", 14),
        ("lossless_pieces", 15),
    ];
    for (name, kind) in kinds {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        // Before the block are four bytes of the section and the length of the block.
        assert_eq!(case.write()[HEADER_LEN + 8], kind, "{name}");
    }
}

/// The hex dump in the specification is the frame that it talks about.
#[test]
fn the_specification_shows_the_bytes_of_its_example() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/frame-format.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, dump) = text.split_once("```hex\n").unwrap();
    let (dump, _) = dump.split_once("```").unwrap();
    // A line is an offset, bytes, and after a bar what they are.
    let bytes: Vec<u8> = dump
        .lines()
        .flat_map(|line| line.split('|').next().unwrap().split_whitespace().skip(1))
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let case = cases().into_iter().find(|case| case.name == "worked_example").unwrap();
    assert_eq!(bytes, case.read());
}

/// So are the other codings of its positions.
#[test]
fn the_specification_shows_the_other_codings_of_its_example() {
    let shown: [(Coding, &[u8]); 3] = [
        (Coding::EliasFano { low_bits: 2 }, &[0x11, 0x4D]),
        (Coding::Rice { bits: 1 }, &[0xD1, 0x08]),
        (Coding::Bitmap, &[0x32, 0x10, 0x00]),
    ];
    for (coding, bytes) in shown {
        let mut out = vec![0xFF; bytes.len()];
        pack::encode_into(coding, &[1, 4, 5, 12], 20, &mut out);
        assert_eq!(out, bytes, "{coding:?}");
    }
}

/// So are the sections of codings 4 and 5.
#[test]
fn the_specification_shows_sections_that_begin_with_parameters() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/frame-positions.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut shown = text.split("```text\n").skip(1).map(|block| block.split("```").next().unwrap());
    let section: Vec<u8> = shown
        .next()
        .unwrap()
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let chunks = Coding::ChunkLocal(Chunks::new(100, 2).unwrap());
    let mut out = vec![0xFF; section.len()];
    pack::encode_into(chunks, &[3, 99, 100, 101, 200, 230], 231, &mut out);
    assert_eq!(out, section);
    // The block in between defines the words.
    let drawn: Vec<u32> =
        shown.nth(1).unwrap().split(", ").map(|p| p.trim().parse().unwrap()).collect();
    let key = Key::from_bits(u64::from_le_bytes([0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01]));
    let mut positions = Vec::new();
    Draw { kind: DrawKind::Subset, key }
        .positions_into(Kernels::current(), 1000, 5, &mut positions)
        .unwrap();
    assert_eq!(positions, drawn);
}

/// Writes the frames of manifest entries that have no file yet; a file that exists is never
/// written to: `cargo test -p gradwire-core --test golden -- --ignored`.
#[test]
#[ignore = "adds files to the repository"]
fn add_missing_golden_frames() {
    for case in cases() {
        if let Ok(mut file) = std::fs::File::create_new(case.path()) {
            file.write_all(&case.write()).unwrap();
            println!("new: {}", case.name);
        }
    }
}
