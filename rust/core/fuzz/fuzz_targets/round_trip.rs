//! Any support and any finite values, written and read back in every layout.
#![no_main]

use gradwire_core::frame::{self, Frame, Layout};
use gradwire_core::sparsify::All;
use gradwire_core::pack::{IndexCoding, Pattern};
use gradwire_core::{Dtype, quantize::{Quantizer, Float16}};

libfuzzer_sys::fuzz_target!(|input: (u8, Vec<(u16, f32)>, u16)| {
    let (choice, entries, after) = input;
    let quantizers = [Quantizer::Float32, Quantizer::BFloat16, Quantizer::Float16(Float16 { scaled: true })];
    let codings = [IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap];
    let quantizer = quantizers[usize::from(choice) % 3];
    let indices = codings[usize::from(choice) / 3 % 3];
    let (dtype, sparsifier, pattern) = (Dtype::F32, All::ID, Pattern::Any);
    let layout = Layout { dtype, sparsifier, quantizer, indices, pattern };
    let (mut positions, mut next) = (Vec::new(), 0);
    for &(gap, _) in &entries {
        positions.push(next + u32::from(gap));
        next += u32::from(gap) + 1;
    }
    let values: Vec<f32> = entries.iter().map(|entry| entry.1).collect();
    let (numel, mut bytes) = (u64::from(next) + u64::from(after), Vec::new());
    let written = frame::write_into(&layout, numel, Some(&positions), &values, &mut bytes);
    assert_eq!(written.is_ok(), values.iter().all(|v| v.is_finite()));
    if written.is_ok() {
        let mut found = Vec::new();
        Frame::parse(&bytes, Some(numel)).unwrap().indices_into(&mut found).unwrap();
        assert_eq!(found, positions);
    }
});
