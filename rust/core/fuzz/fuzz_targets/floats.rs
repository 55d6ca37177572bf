//! Any bytes as a block of floats: what is read comes back where it is written again, at every level.
#![no_main]

use gradwire_core::pack::floats::{self, Bits, Format};
use gradwire_core::simd::{Kernels, available_levels};
use gradwire_fuzz::Bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = &mut Bytes(data);
    match (bytes.below(3), bytes.numel()) {
        (0, len) => check(Format::BFLOAT16, bytes.0, vec![[0; 2]; len]),
        (1, len) => check(Format::FLOAT16, bytes.0, vec![[0; 2]; len]),
        (_, len) => check(Format::FLOAT32, bytes.0, vec![[0; 4]; len]),
    }
});

fn check<T: Bits + PartialEq + std::fmt::Debug>(format: Format, bytes: &[u8], mut found: Vec<T>) {
    let read = floats::read(Kernels::current(), format, bytes, &mut found).is_ok();
    for kernels in available_levels().into_iter().filter_map(Kernels::of) {
        let mut other = found.clone();
        assert_eq!(floats::read(kernels, format, bytes, &mut other).is_ok(), read);
        let mut again = Vec::new();
        floats::write(kernels, format, &found, &mut again);
        assert!(again.len() <= 1 + size_of_val(&*found));
        assert!(floats::read(kernels, format, &again, &mut other).expect("as written").is_empty());
        assert_eq!(other, found);
    }
}
