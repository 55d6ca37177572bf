//! Error feedback.

use super::{Facts, Keeps, Kept, Remember, Storage};
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
    /// What the residual is kept as.
    pub storage: Storage,
}

impl Residual {
    /// All of what is not sent, in float32.
    pub const PLAIN: Self = Self { decay: 1.0, storage: Storage::Float32 };
}

impl Part for Residual {
    const KIND: &'static str = "residual";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { decay: options.get("decay")?, storage: Storage::read(options)? })
    }

    fn check(self) -> Result<()> {
        let decay = self.decay;
        if decay > 0.0 && decay <= 1.0 {
            return Ok(());
        }
        Err(Error::argument(format!("decay must be in (0, 1], got {decay}")))
    }

    fn examples() -> Vec<Self> {
        let (plain, rounded) = (Storage::Float32, |seed| Storage::BFloat16 { seed });
        [(1.0, plain), (0.9, plain), (0.5, plain), (1.0, rounded(0)), (0.9, rounded(3))]
            .map(|(decay, storage)| Self { decay, storage })
            .to_vec()
    }
}

impl Remember for Residual {
    fn facts(self) -> Facts {
        let (keeps, storage) = (Keeps::Residual, self.storage);
        Facts { keeps, storage, becomes_sums: true, ..Facts::default() }
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
        let decay = self.decay;
        if let Some(rounded) = &mut kept.rounded {
            let (residual, next) = rounded.begin();
            let memory = Past::Rounded { residual, decay };
            let next = Next::rounded(next, Filter::ALL, kept.keys.residual, None);
            return Update::new(Tensor { gradient, memory }, next);
        }
        let Some(residual) = &mut kept.residual else { return Tensor::from(gradient).into() };
        let (residual, sums) = residual.begin();
        let memory = Past::Residual { residual, decay };
        Update::new(Tensor { gradient, memory }, Next::sums(sums, &mut []))
    }
}
