//! Any support and any values, written and read back with every quantizer, coding and pattern.
#![no_main]

use gradwire_core::frame::{self, Frame, Scratch};
use gradwire_fuzz::{Bytes, Entries};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let entries = Entries::draw(&mut Bytes(data));
    let Entries { layout, hints, numel, positions, values } = &entries;
    let mut out = Vec::new();
    let written = frame::write_with(layout, hints, *numel, Some(positions), values, &mut (&mut out).into());
    assert_eq!(written.is_ok(), values.iter().all(|v| v.is_finite()));
    if written.is_err() {
        return;
    }
    assert!(out.len() <= entries.longest());
    let frame = Frame::parse(&out, Some(*numel)).unwrap();
    let (mut found, mut read, mut tensor) = (Vec::new(), Vec::new(), vec![1.0; *numel as usize]);
    frame.indices_into(&mut found).unwrap();
    frame.values_into(&mut read).unwrap();
    frame.decode_into(&mut tensor, &mut Scratch::default()).unwrap();
    assert_eq!(found, *positions);
    assert!(read.iter().all(|value| value.is_finite()));
    let there = |&at: &u32| tensor[at as usize].to_bits();
    assert!(found.iter().map(there).eq(read.iter().map(|value| value.to_bits())));
});
