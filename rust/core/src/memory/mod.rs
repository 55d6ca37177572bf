//! Memory: what happens to the part of a tensor that was not sent.
//!
//! Each has a file of its own, with a struct of its options that implements [`Remember`].

mod adam_correction;
mod buffers;
mod estimate;
mod kept;
mod low_pass;
mod momentum_correction;
mod none;
mod residual;
mod storage;

pub(crate) use buffers::{Buffers, add_finite};
pub(crate) use kept::{Keeps, Kept, Keys, Optimizer};
pub use storage::Storage;

use crate::part::{Part, parts};
use crate::scan::{Field, Tensor, Update};
use crate::simd::normal_or_zero;

parts! { $
    /// The memory of a codec.
    memory::Memory ("memory"), each_memory:
    None in none;
    Residual (Residual) in residual;
    LowPass (LowPass) in low_pass;
    MomentumCorrection (MomentumCorrection) in momentum_correction;
    AdamCorrection (AdamCorrection) in adam_correction;
    Estimate (Estimate) in estimate;
}

/// What a memory says about itself, besides its options.
pub(crate) trait Remember: Part {
    /// What is known of it before any entry is.
    fn facts(self) -> Facts;

    /// What there is to encode: this gradient, times `scale`, and what was kept, put together. Without
    /// what the memory keeps, the gradient alone.
    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, scale: f32) -> Tensor<'a>;

    /// The same, and where that is written which is kept of entries that are not sent.
    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, scale: f32) -> Update<'a>;

    /// What is kept of an entry, if `kept` was, and of the sum, `value`, so much was sent.
    fn left(self, _kept: f32, value: f32, sent: f32) -> f32 {
        normal_or_zero(value - sent)
    }
}

/// What is known of a memory before any entry is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    /// Whether the momentum of entries that are sent becomes zero.
    pub masks: bool,
    /// What there is to keep.
    pub keeps: Keeps,
    /// What its values are kept as.
    pub storage: Storage,
    /// The norm to which a gradient is scaled down first, if it is longer.
    pub clip: Option<f32>,
    /// Whether the memory becomes the sums of gradient and memory, where nothing is sent, and what is
    /// left of them elsewhere; in bfloat16 that, rounded.
    pub becomes_sums: bool,
}

impl Memory {
    pub(crate) fn facts(self) -> Facts {
        each_memory!(self, memory => memory.facts())
    }

    pub(crate) fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, scale: f32) -> Tensor<'a> {
        each_memory!(self, memory => memory.tensor(gradient, kept, scale))
    }

    pub(crate) fn update<'a>(
        self,
        gradient: Field<'a>,
        kept: &'a mut Kept,
        scale: f32,
    ) -> Update<'a> {
        each_memory!(self, memory => memory.update(gradient, kept, scale))
    }

    pub(crate) fn left(self, kept: f32, value: f32, sent: f32) -> f32 {
        each_memory!(self, memory => memory.left(kept, value, sent))
    }
}
