//! Any bytes as a block of differences from any floats: what is read comes back where it is written again.
#![no_main]

use gradwire_core::pack::differences;
use gradwire_core::pack::floats::{Bits, Format};
use gradwire_core::simd::{Kernels, available_levels};
use gradwire_fuzz::Bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = &mut Bytes(data);
    let (half, len) = (bytes.byte() < 128, bytes.numel());
    let base = bytes.floats(len);
    if half {
        let base: Vec<_> = base.iter().map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]]).collect();
        check(Format::BFLOAT16, bytes.0, &base);
    } else {
        let base: Vec<_> = base.iter().map(|x| x.to_le_bytes()).collect();
        check(Format::FLOAT32, bytes.0, &base);
    }
});

fn check<T: Bits + PartialEq + std::fmt::Debug>(format: Format, bytes: &[u8], base: &[T]) {
    let mut found = base.to_vec();
    let read = differences::read(Kernels::current(), format, bytes, &mut found);
    if let Ok((_, leavers)) = &read
        && bytes.first() != Some(&255)
    {
        let mut back = found.clone();
        differences::undo(Kernels::current(), format, bytes, leavers, &mut back).expect("as read");
        assert_eq!(back, base);
    }
    for kernels in available_levels().into_iter().filter_map(Kernels::of) {
        let mut other = base.to_vec();
        assert_eq!(differences::read(kernels, format, bytes, &mut other).is_ok(), read.is_ok());
        for whole in [false, true] {
            let mut again = Vec::new();
            differences::write(kernels, format, &found, base, whole, &mut again);
            let mut other = base.to_vec();
            let read = differences::read(kernels, format, &again, &mut other).expect("as written");
            assert!(read.0.is_empty());
            assert_eq!(other, found);
        }
    }
}
