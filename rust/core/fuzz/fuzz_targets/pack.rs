//! Any bytes as an index section: what decodes is ascending, in range, and has no other bytes.
#![no_main]

use gradwire_core::pack;
use gradwire_core::simd::Kernels;
use gradwire_fuzz::{Bytes, Section};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = &mut Bytes(data);
    let Section { coding, parameters, numel, count } = Section::draw(bytes);
    let mut indices = Vec::new();
    if pack::decode_into(Kernels::current(), coding, bytes.0, numel, count, &mut indices).is_err() {
        return;
    }
    assert_eq!(indices.len() as u64, count);
    assert!(indices.is_sorted_by(|a, b| a < b));
    assert!(indices.last().is_none_or(|&last| u64::from(last) < numel));
    let mut again = vec![0xAA; bytes.0.len()];
    pack::encode_into(coding, &indices, numel, &mut again);
    assert_eq!(again.get(parameters..), bytes.0.get(parameters..));
});
