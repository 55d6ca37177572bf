//! Error feedback.

use crate::{Error, Result};

/// What is not sent is added to the next gradient, times `decay`.
///
/// Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
/// Distributed Training of Speech DNNs", Interspeech 2014; Stich et al., "Sparsified SGD with
/// Memory", NeurIPS 2018.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Residual {
    /// Factor of the residual before the gradient is added, in (0, 1].
    pub decay: f32,
    /// One buffer instead of two. The same frames and the same residual, for half the memory;
    /// each encode reads the tensor and the residual once more, and none can be rolled back.
    pub low_memory: bool,
}

impl Residual {
    pub(super) fn check(self) -> Result<()> {
        let decay = self.decay;
        if decay > 0.0 && decay <= 1.0 {
            return Ok(());
        }
        Err(Error::argument(format!("decay must be in (0, 1], got {decay}")))
    }
}
