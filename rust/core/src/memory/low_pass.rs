//! The low-pass filter of ScaleCom.

use super::{Facts, Keeps, Kept, Remember, Storage};
use crate::part::{Options, Part};
use crate::scan::{Field, Filter, Next, Past, Tensor, Update};
use crate::simd::normal_or_zero;
use crate::{Error, Result};

/// A memory that accumulates only a part of each gradient, so that the memories of different ranks
/// stay similar and one rank can select the entries for all.
///
/// With memory `m`, gradient `g`, `p = m + g` and the sent values `s` (zero where nothing is sent),
/// the next memory is `(1 - beta) * m + beta * (p - s)`: for an entry that is not sent
/// `m + beta * g`, for one that is sent exactly `(1 - beta) * m`. With `beta = 1` it is the plain
/// residual, to the last bit.
///
/// Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang and Gopalakrishnan,
/// "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed
/// Training", NeurIPS 2020.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowPass {
    /// Filter coefficient, in (0, 1].
    pub beta: f32,
    /// What the memory is kept as.
    pub storage: Storage,
}

impl LowPass {
    /// The filter of the paper's smallest coefficient, in float32.
    pub const PLAIN: Self = Self { beta: 0.1, storage: Storage::Float32 };

    fn filter(self) -> Filter {
        Filter { beta: self.beta }
    }
}

impl Part for LowPass {
    const KIND: &'static str = "low_pass";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { beta: options.get("beta")?, storage: Storage::read(options)? })
    }

    fn check(self) -> Result<()> {
        let beta = self.beta;
        if beta > 0.0 && beta <= 1.0 {
            return Ok(());
        }
        Err(Error::argument(format!("beta must be in (0, 1], got {beta}")))
    }

    fn examples() -> Vec<Self> {
        let (plain, rounded) = (Storage::Float32, Storage::BFloat16 { seed: 1 });
        [(1.0, plain), (0.1, plain), (0.37, plain), (0.3, rounded), (1.0, rounded)]
            .map(|(beta, storage)| Self { beta, storage })
            .to_vec()
    }
}

impl Remember for LowPass {
    fn facts(self) -> Facts {
        Facts { keeps: Keeps::Residual, storage: self.storage, ..Facts::default() }
    }

    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, _: f32) -> Tensor<'a> {
        let decay = 1.0;
        let memory = match (&kept.residual, &kept.rounded) {
            (Some(memory), _) => Past::Residual { residual: memory.as_slice(), decay },
            (_, Some(memory)) => Past::Rounded { residual: memory.as_slice(), decay },
            _ => Past::None,
        };
        Tensor { gradient, memory }
    }

    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, _: f32) -> Update<'a> {
        if let Some(memory) = &mut kept.rounded {
            let (residual, next) = memory.begin();
            let memory = Past::Rounded { residual, decay: 1.0 };
            let next = Next::rounded(next, self.filter(), kept.keys.residual, None);
            return Update::new(Tensor { gradient, memory }, next);
        }
        let Some(memory) = &mut kept.residual else { return Tensor::from(gradient).into() };
        let (residual, next) = memory.begin();
        let memory = Past::Residual { residual, decay: 1.0 };
        Update::new(Tensor { gradient, memory }, Next::filtered(next, self.filter()))
    }

    fn left(self, kept: f32, value: f32, sent: f32) -> f32 {
        self.filter().left(kept, normal_or_zero(value - sent))
    }
}
