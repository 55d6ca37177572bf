//! Quantizers: what values the selected entries take on the wire.

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
