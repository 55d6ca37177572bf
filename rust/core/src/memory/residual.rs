//! Error feedback.

use super::{Buffers, Facts, Kept, Remember, Storage};
use crate::part::{Options, Part};
use crate::scan::{Field, Filter, Next, Past, Tensor, Update};
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
    /// What the residual is kept as.
    pub storage: Storage,
}

impl Residual {
    /// All of what is not sent, in two float32 buffers.
    pub const PLAIN: Self = Self { decay: 1.0, low_memory: false, storage: Storage::Float32 };
}

impl Part for Residual {
    const KIND: &'static str = "residual";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            decay: options.get("decay")?,
            low_memory: options.get("low_memory")?,
            storage: Storage::read(options)?,
        })
    }

    fn check(self) -> Result<()> {
        let decay = self.decay;
        if decay > 0.0 && decay <= 1.0 {
            return Ok(());
        }
        Err(Error::argument(format!("decay must be in (0, 1], got {decay}")))
    }

    fn sized_as(self, _: Self) -> Self {
        self
    }

    fn examples() -> Vec<Self> {
        let (plain, rounded) = (Storage::Float32, |seed| Storage::BFloat16 { seed });
        [
            (1.0, false, plain),
            (1.0, true, plain),
            (0.9, false, plain),
            (0.5, true, plain),
            (1.0, false, rounded(0)),
            (0.9, true, rounded(3)),
        ]
        .map(|(decay, low_memory, storage)| Self { decay, low_memory, storage })
        .to_vec()
    }
}

impl Remember for Residual {
    fn facts(self) -> Facts {
        Facts {
            masks: false,
            is_in_place: self.low_memory,
            takes_in_place: true,
            keeps: self.storage.keeps(),
            storage: self.storage,
            clip: None,
            becomes_sums: true,
        }
    }

    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, _: f32) -> Tensor<'a> {
        let decay = self.decay;
        let memory = match (&kept.residual, &kept.rounded) {
            (Some(residual), _) => Past::Residual { residual: residual.as_slice(), decay },
            (_, Some(residual)) => Past::Rounded { residual: residual.as_slice(), decay },
            _ => Past::None,
        };
        Tensor { gradient, memory }
    }

    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, _: f32) -> Update<'a> {
        let (decay, plain) = (self.decay, Tensor::from(gradient));
        if let Some(rounded) = &mut kept.rounded {
            let (residual, next) = rounded.begin();
            let memory = residual.map_or(Past::None, |residual| Past::Rounded { residual, decay });
            let in_place = residual.is_none().then_some(decay);
            let next = Next::rounded(next, Filter::ALL, in_place, kept.key);
            return Update::new(Tensor { gradient, memory }, next);
        }
        match kept.residual.as_mut().map(Buffers::begin) {
            None => plain.into(),
            Some((None, residual)) => {
                let next = Next::InPlace { residual, decay, beside: &mut [], rule: None };
                Update::new(plain, next)
            }
            Some((Some(residual), sums)) => {
                let memory = Past::Residual { residual, decay };
                Update::new(Tensor { gradient, memory }, Next::sums(sums, &mut []))
            }
        }
    }

    fn left(self, _: f32, left: f32) -> f32 {
        left
    }
}
