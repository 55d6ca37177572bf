//! 32 bits, exact.

use super::BLOCK;

const EXPONENT: u32 = 0x7F80_0000;

pub(super) fn encode(values: &[f32], out: &mut [u8]) {
    let (codes, _) = out.as_chunks_mut();
    for (code, value) in codes.iter_mut().zip(values) {
        *code = value.to_le_bytes();
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (codes, _) = bytes.as_chunks();
    for (value, code) in out.iter_mut().zip(codes) {
        *value = f32::from_le_bytes(*code);
    }
}

pub(super) fn all_finite(bytes: &[u8]) -> bool {
    let (codes, _) = bytes.as_chunks();
    codes.chunks(BLOCK).all(|block| {
        let finite = |code: &[u8; 4]| u32::from_le_bytes(*code) & EXPONENT != EXPONENT;
        block.iter().fold(true, |all, code| all & finite(code))
    })
}
