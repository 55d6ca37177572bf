//! Adam on each rank, of which steps are sent.

use super::{Facts, Keeps, Kept, Remember, Storage};
use crate::part::{Options, Part};
use crate::scan::{Field, Filter, Next, Past, Tensor, Update};
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
    /// What residual and second moment are kept as.
    pub storage: Storage,
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
            storage: Storage::read(options)?,
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

    fn examples() -> Vec<Self> {
        let (plain, rounded) = (Storage::Float32, |seed| Storage::BFloat16 { seed });
        let all = [(0.999, 1e-8, plain), (0.999, 1e-8, rounded(0)), (0.0, 1e-3, plain)];
        all.into_iter()
            .chain([(0.95, 1e-8, rounded(2))])
            .map(|(beta2, eps, storage)| Self { beta2, eps, storage })
            .collect()
    }
}

impl Remember for AdamCorrection {
    fn facts(self) -> Facts {
        let (keeps, storage) = (Keeps::SecondMoment, self.storage);
        Facts { keeps, storage, becomes_sums: true, ..Facts::default() }
    }

    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, _: f32) -> Tensor<'a> {
        let rule = self.rule(kept);
        let memory = match kept {
            Kept { residual: Some(residual), moment: Some(second), .. } => {
                let (second, residual) = (second.as_slice(), residual.as_slice());
                Past::Adam { second, residual, rule }
            }
            Kept { rounded: Some(residual), rounded_moment: Some(second), .. } => {
                let (second, residual) = (second.as_slice(), residual.as_slice());
                Past::RoundedAdam { second, residual, rule }
            }
            _ => Past::None,
        };
        Tensor { gradient, memory }
    }

    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, _: f32) -> Update<'a> {
        let rule = self.rule(kept);
        match kept {
            Kept { residual: Some(residual), moment: Some(second), .. } => {
                let ((residual, sums), (second, moved)) = (residual.begin(), second.begin());
                let memory = Past::Adam { second, residual, rule };
                Update::new(Tensor { gradient, memory }, Next::sums(sums, moved))
            }
            Kept { rounded: Some(residual), rounded_moment: Some(second), keys, .. } => {
                let ((residual, next), (second, moved)) = (residual.begin(), second.begin());
                let memory = Past::RoundedAdam { second, residual, rule };
                let next =
                    Next::rounded(next, Filter::ALL, keys.residual, Some((moved, keys.moment)));
                Update::new(Tensor { gradient, memory }, next)
            }
            _ => Tensor::from(gradient).into(),
        }
    }
}
