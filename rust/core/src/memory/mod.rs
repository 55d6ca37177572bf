//! Memory: what happens to the part of a tensor that was not sent.

mod buffers;
mod low_pass;
mod momentum_correction;

pub(crate) use buffers::Buffers;
pub use low_pass::LowPass;
pub use momentum_correction::MomentumCorrection;

use crate::{Error, Result};

/// The memory of a codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Memory {
    /// What is not sent is lost.
    None,
    /// Error feedback: what is not sent is added to the next gradient, times `decay`.
    ///
    /// Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    /// Distributed Training of Speech DNNs", Interspeech 2014; Stich et al., "Sparsified SGD with
    /// Memory", NeurIPS 2018.
    Residual {
        /// Factor of the residual before the gradient is added, in (0, 1].
        decay: f32,
        /// One buffer instead of two. The same frames and the same residual, for half the memory;
        /// each encode reads the tensor and the residual once more, and none can be rolled back.
        low_memory: bool,
    },
    /// A low-pass filtered memory of what was not sent.
    LowPass(LowPass),
    /// Momentum before selection; the memory holds momentum and velocity.
    MomentumCorrection(MomentumCorrection),
}

impl Memory {
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Residual { decay, .. } if !(decay > 0.0 && decay <= 1.0) => {
                Err(Error::argument(format!("decay must be in (0, 1], got {decay}")))
            }
            Self::None | Self::Residual { .. } => Ok(()),
            Self::LowPass(low_pass) => low_pass.check(),
            Self::MomentumCorrection(correction) => correction.check(),
        }
    }
}
