//! An estimate of each rank's momentum that all ranks share, for optimizers like Muon.

use super::{Facts, Keeps, Kept, Remember};
use crate::part::{Options, Part};
use crate::scan::{Field, Next, Past, Tensor, Update};
use crate::simd::momentum::Rule;
use crate::simd::normal_or_zero;
use crate::{Error, Result};

/// Each rank keeps an estimate of its momentum that the others can follow, and sends what is to change
/// of it.
///
/// With momentum `m`, gradient `g` and estimate `h`, entries are selected from `t - h`, where
///
/// * `m <- beta * m + (1 - beta) * g`,
/// * `t = m`, or with Nesterov's momentum `t = beta * m + (1 - beta) * g`,
///
/// and what is sent is added to `h` as the receiver decodes it: what is not sent needs no residual,
/// because `t - h` is the whole error of the estimate in each step. The mean of all ranks' `h` is what
/// [`State::deliver`](crate::codec::State::deliver) keeps of the averages: all that an optimizer reads.
///
/// The momentum is kept as [`MomentumCorrection`](super::MomentumCorrection) keeps it: `m`, or with
/// Nesterov's `beta * m`. The estimate is float32: what it is rounded to, no other rank would know.
///
/// Richtarik, Sokolov and Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically
/// Faster Error Feedback", `NeurIPS` 2021; Gruntkowska, Gaponov, Tovmasyan and Richtarik, "Error
/// Feedback for Muon and Friends", arXiv 2510.00643 (2025).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// `beta`, in [0, 1).
    pub momentum: f32,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
}

impl Part for Estimate {
    const KIND: &'static str = "estimate";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { momentum: options.get("momentum")?, nesterov: options.get("nesterov")? })
    }

    fn check(self) -> Result<()> {
        let momentum = self.momentum;
        if (0.0..1.0).contains(&momentum) {
            return Ok(());
        }
        Err(Error::argument(format!("momentum must be in [0, 1), got {momentum}")))
    }

    fn sized_as(self, other: Self) -> Self {
        // Optimizers change it while they train.
        other
    }

    fn examples() -> Vec<Self> {
        [(0.95, true), (0.5, false)]
            .map(|(momentum, nesterov)| Self { momentum, nesterov })
            .to_vec()
    }
}

impl Remember for Estimate {
    fn facts(self) -> Facts {
        Facts { keeps: Keeps::Estimate, ..Facts::default() }
    }

    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, _: f32) -> Tensor<'a> {
        let Kept { residual: Some(estimate), moment: Some(momentum), .. } = kept else {
            return gradient.into();
        };
        Tensor { gradient, memory: self.past(momentum.as_slice(), estimate.as_slice()) }
    }

    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, _: f32) -> Update<'a> {
        let Kept { residual: Some(estimate), moment: Some(momentum), .. } = kept else {
            return Tensor::from(gradient).into();
        };
        let (estimate, next) = estimate.begin();
        let (momentum, moved) = momentum.begin();
        let memory = self.past(momentum, estimate);
        Update::new(Tensor { gradient, memory }, Next::stays(next, moved))
    }

    fn left(self, kept: f32, _: f32, sent: f32) -> f32 {
        normal_or_zero(kept + sent)
    }
}

impl Estimate {
    fn past<'a>(self, momentum: &'a [f32], velocity: &'a [f32]) -> Past<'a> {
        let Self { momentum: keep, nesterov } = self;
        let rule = Rule { momentum: keep, nesterov, scale: 1.0 - keep };
        Past::Momentum { momentum, velocity, factor: -1.0, rule }
    }
}
