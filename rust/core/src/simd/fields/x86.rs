//! By the instructions that gather and scatter bits, which AVX2 and AVX-512 machines have.

use core::arch::x86_64::{_pdep_u64, _pext_u64};

use super::for_width;

/// The lowest `W` bits of every byte.
const fn mask<const W: usize>() -> u64 {
    0x0101_0101_0101_0101 * ((1 << W) - 1)
}

/// See [`super::plain::pack`].
pub(in crate::simd) fn pack(codes: &[u8], width: u32, out: &mut [u8]) {
    #[target_feature(enable = "bmi2")]
    fn fixed<const W: usize>(codes: &[u8], out: &mut [u8]) {
        super::pack::<W>(codes, out, |word| _pext_u64(word, mask::<W>()));
    }
    #[target_feature(enable = "bmi2")]
    fn inner(codes: &[u8], width: u32, out: &mut [u8]) {
        for_width!(width, codes, out, fixed);
    }
    // SAFETY: reached through the dispatch table alone, which hands out the levels AVX2 and AVX-512
    // only where `Level::is_available` has found BMI2 on this CPU.
    unsafe { inner(codes, width, out) }
}

/// See [`super::plain::unpack`].
pub(in crate::simd) fn unpack(bytes: &[u8], width: u32, codes: &mut [u8]) {
    #[target_feature(enable = "bmi2")]
    fn fixed<const W: usize>(bytes: &[u8], codes: &mut [u8]) {
        super::unpack::<W>(bytes, codes, |word| _pdep_u64(word, mask::<W>()));
    }
    #[target_feature(enable = "bmi2")]
    fn inner(bytes: &[u8], width: u32, codes: &mut [u8]) {
        for_width!(width, bytes, codes, fixed);
    }
    // SAFETY: as above.
    unsafe { inner(bytes, width, codes) }
}
