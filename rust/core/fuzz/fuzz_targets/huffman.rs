//! Any bytes as a block of codes: what is read is in the alphabet, and comes back where it is written again.
#![no_main]

use gradwire_core::pack::huffman::{ALPHABET, Code, Reader, counts};
use gradwire_core::simd::Kernels;
use gradwire_fuzz::Bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (bytes, kernels) = (&mut Bytes(data), Kernels::current());
    let (len, alphabet) = (bytes.numel(), 1 + bytes.below(ALPHABET as u64) as usize);
    let Ok((mut reader, _)) = Reader::new(bytes.0, len, alphabet) else { return };
    let mut symbols = vec![0; len];
    if !symbols.chunks_mut(1024).all(|chunk| reader.read(kernels, chunk).is_ok()) {
        return;
    }
    assert!(symbols.iter().all(|symbol| usize::from(*symbol) < alphabet));
    let Some(code) = Code::new(&counts(&symbols, alphabet)) else { return };
    let mut again = Vec::new();
    code.write(kernels, &symbols, &mut again);
    let (mut reader, rest) = Reader::new(&again, len, alphabet).expect("a block as written");
    assert!(rest.is_empty());
    let mut found = vec![0; len];
    reader.read(kernels, &mut found).expect("codes as written");
    assert_eq!(found, symbols);
});
