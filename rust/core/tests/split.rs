//! Frames cut by position, of every quantizer and every coding of positions: the parts are the whole.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure is a failed test")]

mod drawn;
#[allow(dead_code, reason = "the laws are for other tests")]
mod laws;

use drawn::{Numbers, quantizer, support};
use gradwire_core::Dtype;
use gradwire_core::frame::{self, Destination, Frame, Layout, Part, Scratch, Split};
use gradwire_core::quantize::{Hints, Quantizer};
use gradwire_core::rng::Key;
use gradwire_core::simd::{Kernels, available_levels};
use gradwire_core::sparsify::TopK;
use laws::Rng;

fn write(quantizer: Quantizer, draw: &mut Numbers<'_>, numel: usize) -> Vec<u8> {
    let (pattern, positions) = if draw.once_in(6) {
        (<_>::default(), (0..numel as u32).collect())
    } else {
        support(draw, numel)
    };
    let sparsifier = TopK::ID;
    let indices = draw.pick(&drawn::CODINGS);
    let layout = Layout { dtype: Dtype::F32, sparsifier, quantizer, indices, pattern };
    let value = |_| (draw.below(2000) as f32 - 1000.0) / 64.0;
    let values: Vec<f32> = (0..positions.len()).map(value).collect();
    let hints = Hints { key: Some(Key::from_bits(9)), magnitude: None };
    let mut out = Vec::new();
    frame::write_with(
        &layout,
        &hints,
        numel as u64,
        Some(&positions),
        &values,
        &mut (&mut out).into(),
    )
    .unwrap();
    out
}

fn bounds(draw: &mut Numbers<'_>, numel: usize) -> Vec<u64> {
    let mut all: Vec<_> = (0..draw.below(5)).map(|_| draw.below(numel as u64 + 1)).collect();
    all.extend([0, numel as u64]);
    all.sort_unstable();
    all
}

fn tensor(frame: &Frame<'_>, kernels: &'static Kernels) -> Vec<u32> {
    let mut out = vec![f32::NAN; frame.header().numel as usize];
    frame.with(kernels).decode_into(&mut out, &mut Scratch::default()).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

/// Splits a frame, and holds the parts to what they promise.
fn check(bytes: &[u8], bounds: &[u64], kernels: &'static Kernels) -> (Vec<Part>, Vec<u8>) {
    let whole = Frame::parse(bytes, None).unwrap().with(kernels);
    let (mut split, mut out, mut end) = (Split::default(), vec![1, 2, 3], 0);
    whole.split(bounds, &mut split).unwrap();
    for part in split.parts() {
        whole.write_part(&split, part, Destination::behind(&mut out, end)).unwrap();
        end += part.nbytes();
    }
    out.truncate(end);
    let parts = split.parts().to_vec();
    let expected = tensor(&whole, kernels);
    let (mut rest, mut at, mut count) = (&out[..], 0, 0);
    for part in &parts {
        let (frame, after) = Frame::parse_first(rest, Some(part.numel())).unwrap();
        assert_eq!(rest.len() - after.len(), part.nbytes());
        let header = frame.header();
        assert_eq!((part.start, header.numel, header.count), (at, part.numel(), part.count()));
        assert_eq!(header.quantizer, whole.header().quantizer);
        let (from, to) = (at, at + part.numel());
        assert!(bounds[part.range] <= from && to <= bounds[part.range + 1] && part.numel() > 0);
        assert_eq!(tensor(&frame, kernels), expected[from as usize..to as usize]);
        (rest, at, count) = (after, to, count + part.count());
    }
    assert!(rest.is_empty());
    assert_eq!((at, count), (whole.header().numel, whole.header().count));
    for range in 0..bounds.len() - 1 {
        let those = parts.iter().filter(|part| part.range == range).count();
        let is_empty = bounds[range] == bounds[range + 1];
        assert!(if is_empty { those == 0 } else { those == 1 || those == 2 });
    }
    (parts, out)
}

#[test]
fn parts_are_the_whole_for_every_quantizer_and_coding() {
    let levels: Vec<_> = available_levels().into_iter().filter_map(Kernels::of).collect();
    for kind in Quantizer::KINDS {
        for seed in 0..60 {
            let mut rng = Rng(seed);
            let mut below = |n| rng.bits() % n;
            let draw = &mut Numbers(&mut below);
            let numel = draw.below(900) as usize;
            let quantizer = <Quantizer as drawn::parts::Drawn>::draw(kind, draw, numel);
            let bytes = write(quantizer, draw, numel);
            let bounds = bounds(draw, numel);
            let found: Vec<_> = levels.iter().map(|&each| check(&bytes, &bounds, each)).collect();
            assert!(found.iter().all(|each| *each == found[0]), "levels differ: {kind} {seed}");
        }
    }
    let mut below = |n| n - 1;
    quantizer(&mut Numbers(&mut below), 10);
}
