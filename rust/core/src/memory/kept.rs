//! What a memory keeps of one tensor.

use super::{Buffers, Memory};
use crate::Result;

/// What there is to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    /// What was not sent.
    Residual,
    /// What was not sent, and a momentum beside it.
    Momentum,
}

/// The buffers of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    /// What was not sent, which for momentum correction is the velocity.
    pub residual: Option<Buffers>,
    /// The momentum beside it.
    pub momentum: Option<Buffers>,
}

impl Kept {
    /// What this memory keeps of a new tensor.
    pub fn new(memory: Memory, numel: usize) -> Result<Self> {
        let make = |wanted| {
            let buffers = || Buffers::zeros(numel, memory.is_in_place());
            if wanted { buffers().map(Some) } else { Ok(None) }
        };
        let keeps = memory.keeps();
        let residual = make(keeps != Keeps::Nothing)?;
        Ok(Self { residual, momentum: make(keeps == Keeps::Momentum)? })
    }

    /// The same values once more, in one buffer each.
    pub fn copy(&self) -> Result<Self> {
        let copy = |buffers: &Option<Buffers>| buffers.as_ref().map(Buffers::copy).transpose();
        Ok(Self { residual: copy(&self.residual)?, momentum: copy(&self.momentum)? })
    }

    /// The buffers there are.
    pub fn buffers(&mut self) -> impl Iterator<Item = &mut Buffers> {
        self.residual.iter_mut().chain(&mut self.momentum)
    }

    /// Whether an encode overwrites the residual that it reads.
    pub fn is_in_place(&self) -> bool {
        self.residual.as_ref().is_some_and(Buffers::is_in_place)
    }

    /// Whether the last encode can be undone, if there was one.
    pub fn can_roll_back(&self) -> bool {
        self.residual.as_ref().is_none_or(Buffers::can_roll_back)
    }
}
