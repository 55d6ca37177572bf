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
    /// What was not sent of the steps of an optimizer, and a second moment of gradients beside it.
    SecondMoment,
}

impl Keeps {
    /// What that is, for errors.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Residual => "a residual",
            Self::Momentum => "a residual and a momentum",
            Self::SecondMoment => "a residual and a second moment",
        }
    }

    /// Whether a moment is kept beside the residual.
    fn has_moment(self) -> bool {
        match self {
            Self::Nothing | Self::Residual => false,
            Self::Momentum | Self::SecondMoment => true,
        }
    }
}

/// What is kept of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    keeps: Keeps,
    /// What was not sent, which for momentum correction is the velocity.
    pub residual: Option<Buffers>,
    /// The moment beside it.
    pub moment: Option<Buffers>,
    /// What makes steps of gradients, where a memory does.
    pub pace: Pace,
}

/// What steps of an optimizer depend on besides gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    /// The learning rate of the next step.
    pub rate: f64,
    /// Steps so far, each with a gradient that the moment has taken in.
    pub steps: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rate: 1.0, steps: 0 }
    }
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
        Ok(Self { keeps, residual, moment: make(keeps.has_moment())?, pace: Pace::default() })
    }

    /// The same values once more, in one buffer each.
    pub fn copy(&self) -> Result<Self> {
        let copy = |buffers: &Option<Buffers>| buffers.as_ref().map(Buffers::copy).transpose();
        Ok(Self { residual: copy(&self.residual)?, moment: copy(&self.moment)?, ..*self })
    }

    /// What there is.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// The buffers there are.
    pub fn buffers(&mut self) -> impl Iterator<Item = &mut Buffers> {
        self.residual.iter_mut().chain(&mut self.moment)
    }

    /// The bytes of all buffers there are.
    pub fn nbytes(&self) -> usize {
        self.residual.iter().chain(&self.moment).map(Buffers::nbytes).sum()
    }

    /// Makes zeros of a residual that is not finite, and of the moment beside it: something that is
    /// not has gone into that, too.
    pub fn drop_non_finite(&mut self) {
        let Some(residual) = &mut self.residual else { return };
        let moment = self.moment.as_mut().map(Buffers::current_mut).unwrap_or_default();
        let residual = residual.current_mut();
        for (i, value) in residual.iter_mut().enumerate().filter(|(_, value)| !value.is_finite()) {
            *value = 0.0;
            if let Some(moment) = moment.get_mut(i) {
                *moment = 0.0;
            }
        }
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
