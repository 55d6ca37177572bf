//! Adam on each rank, of which steps are sent.

use super::{Facts, Keeps, Kept, Remember, Storage};
use crate::part::{Options, Part};
use crate::scan::{Field, Next, Past, Tensor, Update};
use crate::simd::adam::Rule;
use crate::{Error, Result};

/// Each rank makes Adam's step of its own gradient, and what is not sent of a step is added to the
/// next. What is decoded is an update: subtracted from the parameter, as it is.
///
/// With gradient `g`, second moment `v`, residual `r`, learning rate `lr` and the number `t` of this
/// encode, from 1 on, entries are selected from the sum `r + s`, where
///
/// * `v <- beta2 * v + (1 - beta2) * g * g`,
/// * `s = lr * g / (sqrt(v / (1 - beta2^t)) + eps)`,
///
/// with `|s|` at most `lr * sqrt((1 - beta2^t) / (1 - beta2))`, as the equations have it (section 2.1 of
/// the paper), where `g * g` is beyond float32, too,
/// and what is sent is subtracted from the sum, which becomes `r`. There is no first moment: an entry
/// that waits in the residual gathers steps as a momentum does.
///
/// The step is that of Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015,
/// algorithm 1, with beta1 = 0. A distributed Adam with error feedback is that of Chen, Shen, Liu and
/// Luo, "Efficient-Adam: Communication-Efficient Distributed Adam", arXiv 2022.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamCorrection {
    /// Decay of the second moment, in [0, 1).
    pub beta2: f64,
    /// What is added to the root of the second moment, a normal float32 above 0.
    pub eps: f64,
    /// One buffer each of residual and second moment, instead of two. The same frames, for half the
    /// memory; each encode reads all three once more, and none can be rolled back.
    pub low_memory: bool,
}

/// A step whose second moment is in range comes to its bound but for some roundings.
const SLACK: f64 = 1.0 / (1 << 20) as f64;

impl AdamCorrection {
    /// What the next encode does with a gradient.
    fn rule(self, kept: &Kept) -> Rule {
        let t = kept.optimizer.steps as f64 + 1.0;
        let unseen = libm::pow(self.beta2, t);
        let least = libm::sqrt((1.0 - self.beta2) / (1.0 - unseen)) * (1.0 - SLACK);
        Rule {
            keep: self.beta2 as f32,
            take: (1.0 - self.beta2) as f32,
            correction: (1.0 / libm::sqrt(1.0 - unseen)) as f32,
            eps: self.eps as f32,
            least: least as f32,
            rate: kept.optimizer.rate as f32,
        }
    }
}

impl Part for AdamCorrection {
    const KIND: &'static str = "adam_correction";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            beta2: options.get("beta2")?,
            eps: options.get("eps")?,
            low_memory: options.get("low_memory")?,
        })
    }

    fn check(self) -> Result<()> {
        let Self { beta2, eps, .. } = self;
        if !(0.0..1.0).contains(&beta2) {
            return Err(Error::argument(format!("beta2 must be in [0, 1), got {beta2}")));
        }
        if !(eps > 0.0 && (eps as f32).is_normal()) {
            return Err(Error::argument(format!(
                "eps must be above 0 and a normal float32, got {eps}"
            )));
        }
        Ok(())
    }

    fn sized_as(self, _: Self) -> Self {
        self
    }

    fn examples() -> Vec<Self> {
        [(0.999, 1e-8, false), (0.999, 1e-8, true), (0.0, 1e-3, false), (0.95, 1e-8, true)]
            .map(|(beta2, eps, low_memory)| Self { beta2, eps, low_memory })
            .to_vec()
    }
}

impl Remember for AdamCorrection {
    fn facts(self) -> Facts {
        Facts {
            masks: false,
            is_in_place: self.low_memory,
            takes_in_place: true,
            keeps: Keeps::SecondMoment,
            storage: Storage::Float32,
            clip: None,
            becomes_sums: true,
        }
    }

    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, _: f32) -> Tensor<'a> {
        let rule = self.rule(kept);
        let Kept { residual: Some(residual), moment: Some(second), .. } = kept else {
            return gradient.into();
        };
        let (second, residual) = (second.as_slice(), residual.as_slice());
        Tensor { gradient, memory: Past::Adam { second, residual, rule } }
    }

    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, _: f32) -> Update<'a> {
        let (rule, plain) = (self.rule(kept), Tensor::from(gradient));
        let Kept { residual: Some(residual), moment: Some(second), .. } = kept else {
            return plain.into();
        };
        match (residual.begin(), second.begin()) {
            ((Some(residual), sums), (Some(second), moved)) => {
                let memory = Past::Adam { second, residual, rule };
                Update::new(Tensor { gradient, memory }, Next::sums(sums, moved))
            }
            // Both have as many buffers.
            ((_, residual), (_, beside)) => {
                let (decay, rule) = (1.0, Some(rule));
                Update::new(plain, Next::InPlace { residual, decay, beside, rule })
            }
        }
    }

    fn left(self, _: f32, left: f32) -> f32 {
        left
    }
}
