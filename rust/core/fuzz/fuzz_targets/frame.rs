//! Any bytes, with the checksum they would need, as a frame: an error or a tensor, never a panic.
#![no_main]

use gradwire_core::bucket::{Average, AverageScratch, Mean, Output};
use gradwire_core::frame::{Frame, HEADER_LEN, Scratch, Split};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    if bytes.len() >= HEADER_LEN {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    let Ok(frame) = Frame::parse(&bytes, Some(1 << 12)) else { return };
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    let lists = frame.indices_into(&mut indices).and_then(|()| frame.values_into(&mut values));
    let numel = frame.header().numel;
    let (mut parts, mut part) = (Split::default(), Vec::new());
    let split = frame.split(&[0, numel / 3, numel], &mut parts).and_then(|()| {
        parts.parts().iter().try_for_each(|each| frame.write_part(&parts, each, &mut part))
    });
    let mut out = vec![7.0; numel as usize];
    if frame.decode_into(&mut out, &mut Scratch::default()).is_err() {
        assert!(lists.is_err() && split.is_err() && out.iter().all(|&v| v == 7.0));
        return;
    }
    lists.and(split).unwrap();
    assert!(indices.is_sorted_by(|a, b| a < b) && values.iter().all(|v| v.is_finite()));
    let mut sum = vec![0.0; out.len()];
    frame.decode_add(&mut sum, 1.0, &mut Scratch::default()).unwrap();
    assert_eq!(out, sum);
    let average = Average { mean: Mean::Senders, scale: 1.0 };
    let (ranks, output) = ([&bytes[..]; 1].into_iter(), Output::F32(&mut sum));
    average.write(ranks, output, &mut AverageScratch::default()).unwrap();
    assert_eq!(out, sum);
});
