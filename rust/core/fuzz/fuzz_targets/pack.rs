//! Any bytes as an index section: what decodes is ascending, in range, and has no other bytes.
#![no_main]

use gradwire_core::pack::{self, Coding};
use gradwire_core::simd::Kernels;

libfuzzer_sys::fuzz_target!(|input: (u8, u8, u32, u16, &[u8])| {
    let (kind, width, numel, count, bytes) = input;
    let coding = match kind % 4 {
        0 => Coding::EliasFano { low_bits: width },
        1 => Coding::Rice { bits: width },
        2 => Coding::Bitmap,
        _ => Coding::None,
    };
    // A dense section has no bytes to bound its size by.
    let numel = if coding == Coding::None { numel % (1 << 16) } else { numel };
    let mut indices = Vec::new();
    if pack::decode_into(
        Kernels::current(),
        coding,
        bytes,
        numel.into(),
        count.into(),
        &mut indices,
    )
    .is_err()
    {
        return;
    }
    assert_eq!(indices.len(), usize::from(count));
    assert!(indices.is_sorted_by(|a, b| a < b));
    assert!(indices.last().is_none_or(|&last| last < numel));
    let mut again = vec![0xAA; bytes.len()];
    pack::encode_into(coding, &indices, numel.into(), &mut again);
    assert_eq!(again, bytes);
});
