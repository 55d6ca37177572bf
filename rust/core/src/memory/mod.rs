//! Memory: what happens to the part of a tensor that was not sent.
//!
//! Each has a file of its own, with a struct of its options that implements [`Remember`].

mod buffers;
mod low_pass;
mod momentum_correction;
mod none;
mod residual;

pub(crate) use buffers::Buffers;
pub use low_pass::LowPass;
pub use momentum_correction::MomentumCorrection;
pub use none::None;
pub use residual::Residual;

use crate::part::{Part, parts};

parts! { $
    /// The memory of a codec.
    memory::Memory ("memory"), each_memory:
    None,
    Residual (Residual),
    LowPass (LowPass),
    MomentumCorrection (MomentumCorrection),
}

/// What a memory says about itself, besides its options.
pub(crate) trait Remember: Part {
    /// Whether the momentum of entries that are sent becomes zero.
    fn masks(self) -> bool;

    /// Whether an encode overwrites what it has kept.
    fn is_in_place(self) -> bool;
}

impl Memory {
    /// Whether the momentum of entries that are sent becomes zero.
    pub(crate) fn masks(self) -> bool {
        each_memory!(self, memory => memory.masks())
    }

    /// Whether an encode overwrites what the memory holds, so that none can be rolled back.
    pub fn is_in_place(self) -> bool {
        each_memory!(self, memory => memory.is_in_place())
    }
}
