//! By the instructions that gather and scatter bits, which AVX2 and AVX-512 machines have.

use core::arch::x86_64::{_pdep_u64, _pext_u64};

use super::for_width;

/// The lowest `W` bits of every byte.
const fn mask<const W: usize>() -> u64 {
    0x0101_0101_0101_0101 * ((1 << W) - 1)
}

#[target_feature(enable = "bmi2")]
pub(in crate::simd) fn pack(codes: &[u8], width: u32, out: &mut [u8]) {
    for_width!(width, codes, out, pack_fixed);
}

#[target_feature(enable = "bmi2")]
pub(in crate::simd) fn unpack(bytes: &[u8], width: u32, codes: &mut [u8]) {
    for_width!(width, bytes, codes, unpack_fixed);
}

#[target_feature(enable = "bmi2")]
fn pack_fixed<const W: usize>(codes: &[u8], out: &mut [u8]) {
    super::pack_by::<W>(codes, out, |word| _pext_u64(word, mask::<W>()));
}

#[target_feature(enable = "bmi2")]
fn unpack_fixed<const W: usize>(bytes: &[u8], codes: &mut [u8]) {
    super::unpack_by::<W>(bytes, codes, |word| _pdep_u64(word, mask::<W>()));
}
