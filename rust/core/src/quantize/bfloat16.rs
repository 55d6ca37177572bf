//! The upper half of a float32.

/// Code of the largest finite value.
const MAX: u32 = 0x7F7F;

pub(super) fn encode(values: &[f32], out: &mut [u8]) {
    let (codes, _) = out.as_chunks_mut();
    for (code, value) in codes.iter_mut().zip(values) {
        *code = round(*value).to_le_bytes();
    }
}

/// Nearest code, ties to even. Adding just under half carries into the kept bits exactly where
/// rounding goes up; the lowest kept bit decides ties.
fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16;
    (rounded.min(MAX) | (bits >> 16 & 0x8000)) as u16
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (codes, _) = bytes.as_chunks();
    for (value, code) in out.iter_mut().zip(codes) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*code)) << 16);
    }
}
