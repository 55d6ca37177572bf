//! Round trips through whole frames, and what a writer refuses.

use proptest::prelude::*;

use super::*;
use crate::pack::{Coding, IndexCoding, Pattern};
use crate::quantize::{Float16, Quantizer};
use crate::sparsify::TopK;
use crate::{Dtype, Error};

const QUANTIZERS: [Quantizer; 4] = [
    Quantizer::Float32,
    Quantizer::BFloat16,
    Quantizer::Float16(Float16 { scaled: false }),
    Quantizer::Float16(Float16 { scaled: true }),
];

fn layout(quantizer: Quantizer, indices: IndexCoding) -> Layout {
    Layout { dtype: Dtype::F32, sparsifier: TopK::ID, quantizer, indices, pattern: Pattern::Any }
}

fn write(layout: Layout, numel: u64, indices: Option<&[u32]>, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0xAA; 5];
    write_into(&layout, numel, indices, values, &mut out).unwrap();
    out
}

/// What the frame must decode to, the slow way.
fn expected(quantizer: Quantizer, numel: u64, indices: &[u32], values: &[f32]) -> Vec<f32> {
    let layout = layout(quantizer, IndexCoding::Auto);
    let mut rounded = Vec::new();
    let dense = write(layout, values.len() as u64, None, values);
    Frame::parse(&dense, None).unwrap().values_into(&mut rounded).unwrap();
    let mut out = vec![0.0; numel as usize];
    for (&index, value) in indices.iter().zip(rounded) {
        out[index as usize] = value;
    }
    out
}

fn tensors() -> impl Strategy<Value = (u64, Vec<u32>, Vec<f32>)> {
    (0..600_u32, 0..=255_u8).prop_flat_map(|(numel, density)| {
        let keep = prop::collection::vec(any::<u8>(), numel as usize);
        keep.prop_flat_map(move |keep| {
            let indices: Vec<u32> = (0..numel).filter(|&i| keep[i as usize] <= density).collect();
            let value =
                any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite());
            let values = prop::collection::vec(value, indices.len());
            (Just(u64::from(numel)), Just(indices), values)
        })
    })
}

proptest! {
    #[test]
    fn frames_decode_to_what_was_written((numel, indices, values) in tensors(), scale in -2.0_f32..2.0) {
        let mut scratch = Scratch::default();
        for quantizer in QUANTIZERS {
            for allowed in [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap] {
                let layout = layout(quantizer, allowed);
                let bytes = write(layout, numel, Some(&indices), &values);
                prop_assert!(bytes.len() <= max_len(quantizer, allowed, Pattern::Any, numel, indices.len() as u64));
                let frame = Frame::parse(&bytes, Some(numel)).unwrap();
                let header = frame.header();
                prop_assert_eq!((header.numel, header.count), (numel, indices.len() as u64));

                let mut found = vec![3; 2];
                frame.indices_into(&mut found).unwrap();
                prop_assert_eq!(&found, &indices);

                let tensor = expected(quantizer, numel, &indices, &values);
                let mut out = vec![f32::NAN; numel as usize];
                frame.decode_into(&mut out, &mut scratch).unwrap();
                prop_assert!(out.iter().zip(&tensor).all(|(a, b)| a.to_bits() == b.to_bits()));

                let mut sum: Vec<f32> = (0..numel).map(|i| i as f32).collect();
                frame.decode_add(&mut sum, scale, &mut scratch).unwrap();
                for (i, (sum, value)) in sum.iter().zip(&tensor).enumerate() {
                    prop_assert_eq!(sum.to_bits(), (i as f32 + value * scale).to_bits());
                }
                let mut list = vec![f32::NAN; 2];
                frame.values_into(&mut list).unwrap();
                prop_assert!(list.iter().zip(&indices).all(|(v, &i)| v.to_bits() == tensor[i as usize].to_bits()));
            }
        }
    }

    #[test]
    fn a_full_support_is_a_dense_frame(values in prop::collection::vec(-1.0_f32..1.0, 0..700)) {
        let numel = values.len() as u64;
        let all: Vec<u32> = (0..numel as u32).collect();
        for quantizer in QUANTIZERS {
            let layout = layout(quantizer, IndexCoding::Auto);
            let dense = write(layout, numel, None, &values);
            prop_assert_eq!(dense.len(), dense_len(quantizer, numel));
            prop_assert_eq!(&dense, &write(layout, numel, Some(&all), &values));
            let frame = Frame::parse(&dense, None).unwrap();
            prop_assert_eq!(frame.header().coding, Coding::None);
            let mut out = vec![f32::NAN; values.len()];
            frame.decode_into(&mut out, &mut Scratch::default()).unwrap();
            prop_assert_eq!(out, expected(quantizer, numel, &all, &values));
        }
    }
}

#[test]
fn writers_refuse_what_no_reader_would_take() {
    let refuse = |numel, indices: Option<&[u32]>, values: &[f32]| {
        let layout = layout(Quantizer::BFloat16, IndexCoding::Auto);
        write_into(&layout, numel, indices, values, &mut Vec::new()).unwrap_err()
    };
    let is_argument = |error| assert!(matches!(error, Error::Argument { .. }), "{error}");
    is_argument(refuse(4, Some(&[1, 1]), &[1.0, 2.0]));
    is_argument(refuse(4, Some(&[2, 1]), &[1.0, 2.0]));
    is_argument(refuse(4, Some(&[1, 4]), &[1.0, 2.0]));
    is_argument(refuse(4, Some(&[1, 2]), &[1.0]));
    is_argument(refuse(4, None, &[1.0]));
    is_argument(refuse(1 << 32, Some(&[1]), &[1.0]));
    let bad = [1.0, f32::NAN, 0.0, f32::INFINITY];
    assert_eq!(refuse(4, None, &bad), Error::NonFinite { count: 2, first: 1 });
}

#[test]
fn out_of_another_length_is_the_callers_error_and_untouched() {
    let layout = layout(Quantizer::Float32, IndexCoding::Auto);
    let bytes = write(layout, 4, Some(&[1]), &[2.0]);
    let frame = Frame::parse(&bytes, None).unwrap();
    for len in [0, 3, 5] {
        let mut out = vec![9.0; len];
        let error = frame.decode_add(&mut out, 1.0, &mut Scratch::default()).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }));
        assert!(frame.decode_into(&mut out, &mut Scratch::default()).is_err());
        assert!(out.iter().all(|&v| v == 9.0));
    }
}

#[test]
fn a_frame_above_the_callers_limit_is_too_large() {
    let layout = layout(Quantizer::Float32, IndexCoding::Auto);
    let bytes = write(layout, 1000, Some(&[1]), &[2.0]);
    assert!(Frame::parse(&bytes, Some(1000)).is_ok());
    let error = Frame::parse(&bytes, Some(999)).unwrap_err();
    assert_eq!(error, Error::TooLarge { numel: 1000, limit: 999 });
}

#[test]
fn a_frame_that_was_checked_is_read_again_without_its_checksum() {
    let layout = layout(Quantizer::Float32, IndexCoding::Auto);
    let mut bytes = write(layout, 50, Some(&[3, 9]), &[1.0, -2.0]);
    bytes[12] ^= 1;
    assert!(Frame::parse(&bytes, None).is_err());
    let mut positions = Vec::new();
    Frame::parse_again(&bytes, None).unwrap().indices_into(&mut positions).unwrap();
    assert_eq!(positions, [3, 9]);
    // All else is checked as ever: nothing is believed.
    bytes.pop();
    assert!(Frame::parse_again(&bytes, None).is_err());
}
