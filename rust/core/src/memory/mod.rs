//! Memory: what happens to the part of a tensor that was not sent.

mod buffers;
mod low_pass;
mod momentum_correction;
mod residual;

pub(crate) use buffers::Buffers;
pub use low_pass::LowPass;
pub use momentum_correction::MomentumCorrection;
pub use residual::Residual;

use crate::Result;

/// The memory of a codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Memory {
    /// What is not sent is lost.
    None,
    /// Error feedback.
    Residual(Residual),
    /// A low-pass filtered memory of what was not sent.
    LowPass(LowPass),
    /// Momentum before selection; the memory holds momentum and velocity.
    MomentumCorrection(MomentumCorrection),
}

impl Memory {
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Residual(residual) => residual.check(),
            Self::LowPass(low_pass) => low_pass.check(),
            Self::MomentumCorrection(correction) => correction.check(),
        }
    }
}
