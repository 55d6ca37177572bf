//! By shifts: eight bytes become four pairs, two quadruples, one field.

use super::for_width;

pub(in crate::simd) fn pack(codes: &[u8], width: u32, out: &mut [u8]) {
    for_width!(width, codes, out, pack_fixed);
}

pub(in crate::simd) fn unpack(bytes: &[u8], width: u32, codes: &mut [u8]) {
    for_width!(width, bytes, codes, unpack_fixed);
}

fn pack_fixed<const W: usize>(codes: &[u8], out: &mut [u8]) {
    super::pack_by::<W>(codes, out, |word| {
        let word = nearer(word, W, 8, 0x0001_0001_0001_0001);
        let word = nearer(word, 2 * W, 16, 0x0000_0001_0000_0001);
        nearer(word, 4 * W, 32, 1)
    });
}

fn unpack_fixed<const W: usize>(bytes: &[u8], codes: &mut [u8]) {
    super::unpack_by::<W>(bytes, codes, |word| {
        let word = apart(word, 4 * W, 32, 1);
        let word = apart(word, 2 * W, 16, 0x0000_0001_0000_0001);
        apart(word, W, 8, 0x0001_0001_0001_0001)
    });
}

/// Moves every second field of `width` bits down from bit `from` to the end of the field before it;
/// `ones` marks where the pairs begin.
#[inline(always)]
fn nearer(word: u64, width: usize, from: usize, ones: u64) -> u64 {
    let mask = ones * ((1 << width) - 1);
    (word & mask) | (word >> (from - width) & mask << width)
}

/// The inverse of [`nearer`].
#[inline(always)]
fn apart(word: u64, width: usize, to: usize, ones: u64) -> u64 {
    let mask = ones * ((1 << width) - 1);
    (word & mask) | (word << (to - width) & mask << to)
}
