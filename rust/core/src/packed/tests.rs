//! Every level and number of threads against decoding the frame and one entry at a time.

use super::*;
use crate::Input;
use crate::codec::{Codec, Workspace};
use crate::frame::Scratch;
use crate::memory::Memory;
use crate::pack::IndexCoding;
use crate::quantize::{Affine, AffineFit, Quantizer, Rounding};
use crate::reference::{product, rounded_product};
use crate::simd::available_levels;
use crate::sparsify::Sparsifier;

fn affine(bits: u8, block: Option<u32>) -> Quantizer {
    let (fit, rounding) = (AffineFit::Range, Rounding::Nearest);
    Quantizer::Affine(Affine { bits, block, fit, rounding, seed: 0 })
}

fn weights(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 1e-3 + (i / 37 % 5) as f32 * 0.1)
        .collect()
}

/// The frame of a matrix, and its values.
fn packed(bits: u8, block: Option<u32>, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let (quantizer, weights) = (affine(bits, block), weights(rows * cols));
    let codec = Codec::new(Sparsifier::All, quantizer, Memory::None, IndexCoding::Auto).unwrap();
    let (mut state, mut frame) = (codec.init_state(weights.len()).unwrap(), Vec::new());
    let workspace = &mut Workspace::default();
    codec.encode_into(Input::F32(&weights), &mut state, None, workspace, &mut frame).unwrap();
    let mut values = vec![0.0; weights.len()];
    let parsed = Frame::parse(&frame, None).unwrap();
    parsed.decode_into(&mut values, &mut Scratch::default()).unwrap();
    (frame, values)
}

fn vectors(count: usize, cols: usize) -> Vec<f32> {
    (0..count * cols).map(|i| ((i * 104_729 % 2003) as f32 - 1000.0) * 1e-3).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Blocks, rows and columns: those that are read where they lie, with runs of 64 and 32, within larger
/// blocks, in parts of blocks and of rows; short blocks and long ones, blocks across rows, and what
/// does not begin on a byte.
const SHAPES: &[(Option<u32>, usize, usize)] = &[
    (Some(64), 5, 192),
    (Some(64), 1, 64),
    (Some(32), 9, 96),
    (Some(16), 4, 48),
    (Some(128), 3, 640),
    (Some(96), 2, 96),
    (Some(80), 3, 1200),
    (Some(512), 2, 128),
    (None, 4, 256),
    (None, 3, 100),
    (None, 2, 4112),
    (Some(1040), 2, 2080),
    (Some(64), 2, 4160),
    (Some(20), 5, 100),
    (Some(100), 3, 300),
    (Some(7), 3, 21),
    (Some(1), 2, 8),
    (Some(64), 6, 130),
    (Some(48), 5, 33),
    (Some(5), 1, 1),
];

fn shapes() -> impl Iterator<Item = (u8, Option<u32>, usize, usize)> {
    let shapes = if cfg!(miri) { &SHAPES[..3] } else { SHAPES };
    (1..=8).flat_map(move |bits| shapes.iter().map(move |&(block, r, c)| (bits, block, r, c)))
}

fn kernels() -> impl Iterator<Item = (&'static Kernels, usize)> {
    available_levels().into_iter().filter_map(Kernels::of).flat_map(|k| [(k, 1), (k, 3)])
}

#[test]
fn products_are_those_of_decoded_rows_or_exact_sums_on_every_level_and_number_of_threads() {
    for (width, block, rows, cols) in shapes() {
        let (frame, values) = packed(width, block, rows, cols);
        let matrix = Packed::new(Frame::parse(&frame, None).unwrap(), rows, cols).unwrap();
        let crosses = matrix.row_block().is_none();
        let mut codes = vec![0; rows * cols];
        Kernels::current().unpack(matrix.section.codes, u32::from(width), &mut codes);
        let mut scales = vec![[0.0; 2]; matrix.section.scales.len()];
        matrix.widen(matrix.section.scales, &mut scales);
        let one = |x: &[f32], row: usize, how| {
            let at = row * cols..(row + 1) * cols;
            if crosses || how == Activations::Float32 {
                return product(&values[at], x);
            }
            let scales = &scales[at.start / matrix.block..];
            rounded_product(&codes[at], scales, matrix.block.min(cols), x)
        };
        for (count, how) in [0, 1, 2, 3, 8, 16, 17]
            .into_iter()
            .flat_map(|count| [Activations::Float32, Activations::Int8].map(|how| (count, how)))
        {
            let x = vectors(count, cols);
            let rows_of = |x| (0..rows).map(move |row| one(x, row, how));
            let expected: Vec<f32> = x.chunks(cols).flat_map(rows_of).collect();
            for (kernels, threads) in kernels() {
                let mut out = vec![7.0; count * rows];
                matrix.with(kernels, threads).linear(&x, how, &mut out).unwrap();
                let told = format!("{kernels:?} {threads} {width} {block:?} {rows} {cols} {count}");
                assert_eq!(bits(&out), bits(&expected), "{told}");
            }
        }
    }
}

#[test]
fn rows_are_decoded_from_anywhere_to_either_type() {
    for (width, block, rows, cols) in shapes() {
        let (frame, values) = packed(width, block, rows, cols);
        let matrix = Packed::of_columns(Frame::parse(&frame, None).unwrap(), cols).unwrap();
        for (kernels, threads) in kernels() {
            let matrix = matrix.with(kernels, threads);
            let told = format!("{kernels:?} {threads} {width} {block:?} {rows} {cols}");
            for (start, count) in [(0, rows), (rows / 2, rows - rows / 2), (rows, 0)] {
                let expected = &values[start * cols..(start + count) * cols];
                let mut out = vec![7.0; count * cols];
                matrix.decode(start, count, Output::F32(&mut out)).unwrap();
                assert_eq!(bits(&out), bits(expected), "{told}");
                let mut out = vec![bf16::ONE; count * cols];
                matrix.decode(start, count, Output::BF16(&mut out)).unwrap();
                assert!(
                    out.iter().zip(expected).all(|(out, x)| *out == bf16::from_f32(*x)),
                    "{told}"
                );
            }
            let indices: Vec<i64> =
                (0..2 * rows as i64).map(|i| (i * 3 + 1) % rows as i64).collect();
            let mut out = vec![7.0; indices.len() * cols];
            matrix.take(&indices, Output::F32(&mut out)).unwrap();
            for (index, out) in indices.iter().zip(out.chunks(cols)) {
                let from = *index as usize * cols;
                assert_eq!(bits(out), bits(&values[from..from + cols]), "{told}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_goes_through_as_in_any_product() {
    let (frame, values) = packed(4, Some(64), 3, 192);
    let matrix = Packed::new(Frame::parse(&frame, None).unwrap(), 3, 192).unwrap();
    for (kernels, threads) in kernels() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vectors(3, 192);
            x[192 + 100] = bad;
            let mut out = vec![7.0; 9];
            let matrix = matrix.with(kernels, threads);
            matrix.linear(&x, Activations::Float32, &mut out).unwrap();
            let pairs =
                x.chunks(192).flat_map(|x| values.chunks(192).map(move |row| product(row, x)));
            assert_eq!(bits(&out), bits(&pairs.collect::<Vec<_>>()));
            assert!(out[3..6].iter().all(|y| !y.is_finite()));
            matrix.linear(&x, Activations::Int8, &mut out).unwrap();
            assert!(out[3..6].iter().all(|y| y.to_bits() == f32::NAN.to_bits()));
            assert!(out[..3].iter().chain(&out[6..]).all(|y| y.is_finite()));
        }
    }
}

#[test]
fn frames_and_lengths_that_do_not_fit_are_refused_and_nothing_is_written() {
    let (frame, _) = packed(4, Some(64), 3, 192);
    let frame = Frame::parse(&frame, None).unwrap();
    for (rows, cols) in [(3, 191), (2, 192), (usize::MAX, 192), (0, 0), (1, 0)] {
        let error = Packed::new(frame, rows, cols).unwrap_err().to_string();
        assert!(error.contains(&format!("576 entries, not {rows} rows of {cols}")), "{error}");
    }
    let (matrix, mut out) = (Packed::new(frame, 3, 192).unwrap(), [7.0; 192]);
    assert!(matrix.linear(&[0.0; 191], Activations::Int8, &mut out[..3]).is_err());
    assert!(matrix.linear(&[0.0; 192], Activations::Int8, &mut out[..4]).is_err());
    for (start, count) in [(3, 1), (0, 4), (4, 0), (usize::MAX, 2), (0, 2)] {
        assert!(matrix.decode(start, count, Output::F32(&mut out)).is_err());
    }
    for index in [-1, 3, i64::MIN, i64::MAX] {
        let error = matrix.take(&[index], Output::F32(&mut out)).unwrap_err();
        assert_eq!(error, Error::NoRow { index, rows: 3 });
    }
    assert!(matrix.take(&[0, 1], Output::F32(&mut out)).is_err());
    assert_eq!(out, [7.0; 192]);
}

#[test]
fn a_frame_of_something_else_is_refused() {
    let codec =
        Codec::new(Sparsifier::All, Quantizer::Float32, Memory::None, IndexCoding::Auto).unwrap();
    let (mut state, mut frame) = (codec.init_state(4).unwrap(), Vec::new());
    let workspace = &mut Workspace::default();
    codec.encode_into(Input::F32(&[1.0; 4]), &mut state, None, workspace, &mut frame).unwrap();
    let error = Packed::new(Frame::parse(&frame, None).unwrap(), 2, 2).unwrap_err().to_string();
    assert!(error.contains("no packed weights"), "{error}");
}

#[test]
fn of_no_rows_or_columns_nothing_or_zeros_come() {
    let (frame, _) = packed(4, Some(64), 0, 64);
    let frame = Frame::parse(&frame, None).unwrap();
    let none = Packed::new(frame, 0, 64).unwrap();
    none.linear(&vectors(3, 64), Activations::Int8, &mut []).unwrap();
    none.decode(0, 0, Output::F32(&mut [])).unwrap();
    let mut out = [7.0; 6];
    Packed::new(frame, 3, 0).unwrap().linear(&[], Activations::Float32, &mut out).unwrap();
    assert_eq!(out, [0.0; 6]);
}

#[test]
fn the_error_is_the_same_on_every_level_and_number_of_threads() {
    for (width, block, rows, cols) in shapes() {
        let (frame, decoded) = packed(width, block, rows, cols);
        let matrix = Packed::new(Frame::parse(&frame, None).unwrap(), rows, cols).unwrap();
        let values = vectors(rows, cols);
        let squares =
            |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let lost = squares(&mut decoded.iter().zip(&values).map(|(d, x)| d - x));
        let expected = (lost / squares(&mut values.iter().copied())).sqrt();
        let mut found = kernels().map(|(k, threads)| {
            let mut out = vec![0.0; decoded.len()];
            let error = matrix.with(k, threads).error(&values, &mut out).unwrap();
            assert_eq!(bits(&out), bits(&decoded));
            error
        });
        let first = found.next().unwrap();
        assert!((first / expected - 1.0).abs() < 1e-9, "{first} {expected}");
        assert!(found.all(|error| error.to_bits() == first.to_bits()));
        assert_eq!(matrix.error(&decoded, &mut []).unwrap(), 0.0);
        assert!(matrix.error(&decoded[1..], &mut []).is_err());
        assert!(matrix.error(&decoded, &mut vec![0.0; decoded.len() + 1]).is_err());
    }
    let (frame, _) = packed(4, Some(64), 1, 64);
    let matrix = Packed::new(Frame::parse(&frame, None).unwrap(), 1, 64).unwrap();
    assert_eq!(matrix.error(&[0.0; 64], &mut []).unwrap(), f64::INFINITY);
}

#[test]
fn a_frame_of_chosen_codes_and_grids_is_that_of_encoding_where_they_are_the_nearest() {
    for (width, block, rows, cols) in shapes() {
        let (frame, _) = packed(width, block, rows, cols);
        let matrix = Packed::new(Frame::parse(&frame, None).unwrap(), 1, rows * cols).unwrap();
        let mut codes = vec![0; rows * cols];
        matrix.kernels.unpack(matrix.section.codes, u32::from(width), &mut codes);
        let mut grids = vec![[0.0; 2]; matrix.section.scales.len()];
        matrix.widen(matrix.section.scales, &mut grids);
        let (steps, bases): (Vec<_>, Vec<_>) = grids.iter().map(|grid| (grid[0], grid[1])).unzip();
        let chosen = Chosen { codes: &codes, steps: &steps, bases: &bases };
        let (values, quantizer) = (weights(rows * cols), affine(width, block));
        assert_eq!(chosen.frame(&values, quantizer).unwrap(), frame);
        assert_eq!(matrix.with_codes(chosen).unwrap(), frame);
        assert!(chosen.frame(&values, Quantizer::Float32).is_err());
        let wrong = [
            Chosen { codes: &codes[1..], ..chosen },
            Chosen { steps: &steps[1..], ..chosen },
            Chosen { codes: &vec![255; codes.len()], ..chosen },
            Chosen { steps: &vec![-1.0; steps.len()], ..chosen },
            Chosen { steps: &vec![f32::NAN; steps.len()], ..chosen },
            Chosen { bases: &vec![1e9; steps.len()], ..chosen },
        ];
        for (i, wrong) in wrong.into_iter().enumerate() {
            assert!(wrong.frame(&values, quantizer).is_err() || (i == 2 && width == 8));
            assert!(matrix.with_codes(wrong).is_err() || (i == 2 && width == 8));
        }
    }
}
