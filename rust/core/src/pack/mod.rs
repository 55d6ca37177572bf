//! Index coding: strictly ascending positions to bits, near the information bound.

/// How a codec may code positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IndexCoding {
    /// The smallest of the others for each frame.
    #[default]
    Auto,
    /// Elias-Fano: fixed low bits and a unary high-bit vector.
    EliasFano,
    /// Rice-coded gaps.
    Rice,
    /// One bit an element.
    Bitmap,
}
