//! Quantizers: what values the selected entries take on the wire.
//!
//! Rounding is to nearest, ties to even, and saturates at the largest finite value: a finite value
//! never becomes infinite. Values are stored little-endian, one after the other.

mod bfloat16;
mod float16;
mod float32;

/// The value coding of a codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Quantizer {
    /// 32 bits, exact.
    #[default]
    Float32,
    /// The upper 16 bits of a float32, rounded to nearest even; saturates at the largest finite value.
    BFloat16,
    /// IEEE binary16, rounded to nearest even; saturates at 65504.
    Float16 {
        /// Multiply by a power of two for each frame, so that the largest value just fits.
        scaled: bool,
    },
}

/// Exponents that [`Quantizer::scale_exponent`] can give: from the largest float32 to the smallest.
pub const SCALE_EXPONENTS: std::ops::RangeInclusive<i16> = -112..=164;

impl Quantizer {
    /// Bytes that each value takes.
    pub const fn bytes_per_value(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::BFloat16 | Self::Float16 { .. } => 2,
        }
    }

    /// The exponent `e` such that values are multiplied by `2^e` before they are rounded.
    ///
    /// For `Float16 { scaled: true }` the largest one that keeps the largest magnitude at or below
    /// 65504, but not below -112: there the codes already reach the largest float32, and what is
    /// above saturates. Zero for all other quantizers and where all values are zero. Values must
    /// be finite.
    pub fn scale_exponent(self, values: &[f32]) -> i16 {
        match self {
            Self::Float16 { scaled: true } => float16::scale_exponent(values),
            _ => 0,
        }
    }

    /// Rounds finite values to their codes. `exponent` comes from [`Self::scale_exponent`].
    ///
    /// # Panics
    ///
    /// If `out` is not [`Self::bytes_per_value`] bytes a value long.
    pub fn encode_into(self, exponent: i16, values: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), values.len() * self.bytes_per_value(), "bytes for the values");
        match self {
            Self::Float32 => float32::encode(values, out),
            Self::BFloat16 => bfloat16::encode(values, out),
            Self::Float16 { .. } => float16::encode(exponent, values, out),
        }
    }

    /// Codes back to values, exactly. The inverse of rounding is the identity on codes.
    ///
    /// # Panics
    ///
    /// If `bytes` is not [`Self::bytes_per_value`] bytes a value long.
    pub fn decode_into(self, exponent: i16, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.bytes_per_value(), "bytes of the values");
        match self {
            Self::Float32 => float32::decode(bytes, out),
            Self::BFloat16 => bfloat16::decode(bytes, out),
            Self::Float16 { .. } => float16::decode(exponent, bytes, out),
        }
    }

    /// What decoding gives for these finite values, without the bytes in between.
    ///
    /// # Panics
    ///
    /// If `out` is not as long as `values`.
    pub fn round_into(self, exponent: i16, values: &[f32], out: &mut [f32]) {
        assert_eq!(values.len(), out.len(), "room for the values");
        if self == Self::Float32 {
            out.copy_from_slice(values);
            return;
        }
        let mut codes = [0; 2 * BLOCK];
        for (values, out) in values.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let codes = &mut codes[..2 * values.len()];
            self.encode_into(exponent, values, codes);
            self.decode_into(exponent, codes, out);
        }
    }

    /// Whether no code in `bytes` is infinite or NaN.
    pub(crate) fn all_finite(self, bytes: &[u8]) -> bool {
        match self {
            Self::Float32 => float32::all_finite(bytes),
            Self::BFloat16 => finite_halves(bytes, 0x7F80),
            Self::Float16 { .. } => finite_halves(bytes, 0x7C00),
        }
    }
}

/// Values handled at a time where a buffer stands between two steps: small enough for the L1 cache.
pub(crate) const BLOCK: usize = 256;

/// Whether no 16-bit code has all bits of its exponent set.
fn finite_halves(bytes: &[u8], exponent: u16) -> bool {
    let (codes, _) = bytes.as_chunks();
    // A fold over whole blocks vectorises; an early exit within them would not.
    codes.chunks(BLOCK).all(|block| {
        let finite = |code: &[u8; 2]| u16::from_le_bytes(*code) & exponent != exponent;
        block.iter().fold(true, |all, code| all & finite(code))
    })
}

#[cfg(test)]
mod tests;
