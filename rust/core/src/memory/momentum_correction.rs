//! The momentum correction of Deep Gradient Compression.

use super::{Facts, Keeps, Kept, Remember};
use crate::part::{Options, Part};
use crate::scan::{Field, Next, Past, Tensor, Update};
use crate::simd::momentum::Rule;
use crate::{Error, Result};

/// Momentum is applied to the local gradient before entries are selected, and the result is
/// accumulated in a velocity. The optimizer must not apply momentum again.
///
/// With momentum `u`, velocity `v` and gradient `g`, entries are selected from the next `v`:
///
/// * `u <- m * u + g`, `v <- v + u`, or
/// * with Nesterov's momentum `u <- m * (u + g)`, `v <- v + u + g`.
///
/// What is sent is subtracted from `v`. With masking, `u` is also set to zero there, so that stale
/// momentum does not keep pushing entries that have been sent (momentum factor masking).
///
/// Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
/// for Distributed Training", ICLR 2018, sections 3.2 (correction, clipping) and 3.3 (masking).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentumCorrection {
    /// `m`, in [0, 1).
    pub momentum: f32,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Whether the momentum of an entry that is sent becomes zero.
    pub masking: bool,
    /// Maximum Euclidean norm of the gradient of this tensor; if its norm is larger, the gradient is
    /// scaled down first. The paper clips the norm of the node's whole gradient instead, over all
    /// tensors. Costs a read of the gradient.
    pub clip: Option<f32>,
}

impl Part for MomentumCorrection {
    const KIND: &'static str = "momentum_correction";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            momentum: options.get("momentum")?,
            nesterov: options.get("nesterov")?,
            masking: options.get("masking")?,
            clip: options.get("clip")?,
        })
    }

    fn check(self) -> Result<()> {
        let momentum = self.momentum;
        if !(0.0..1.0).contains(&momentum) {
            return Err(Error::argument(format!("momentum must be in [0, 1), got {momentum}")));
        }
        match self.clip {
            Some(clip) if !(clip > 0.0 && clip.is_finite()) => {
                Err(Error::argument(format!("clip must be finite and above 0, got {clip}")))
            }
            _ => Ok(()),
        }
    }

    fn examples() -> Vec<Self> {
        let plain = Self { momentum: 0.9, nesterov: false, masking: false, clip: None };
        let masking = Self { masking: true, ..plain };
        vec![plain, masking, Self { momentum: 0.5, nesterov: true, clip: Some(1.0), ..masking }]
    }
}

impl Remember for MomentumCorrection {
    fn facts(self) -> Facts {
        let (masks, clip) = (self.masking, self.clip);
        Facts { masks, keeps: Keeps::Momentum, clip, becomes_sums: true, ..Facts::default() }
    }

    fn tensor<'a>(self, gradient: Field<'a>, kept: &'a Kept, scale: f32) -> Tensor<'a> {
        let Kept { residual: Some(velocity), moment: Some(momentum), .. } = kept else {
            return gradient.into();
        };
        let (momentum, velocity) = (momentum.as_slice(), velocity.as_slice());
        Tensor { gradient, memory: self.past(momentum, velocity, scale) }
    }

    fn update<'a>(self, gradient: Field<'a>, kept: &'a mut Kept, scale: f32) -> Update<'a> {
        let Kept { residual: Some(velocity), moment: Some(momentum), .. } = kept else {
            return Tensor::from(gradient).into();
        };
        let (velocity, sums) = velocity.begin();
        let (momentum, moved) = momentum.begin();
        let memory = self.past(momentum, velocity, scale);
        Update::new(Tensor { gradient, memory }, Next::sums(sums, moved))
    }
}

impl MomentumCorrection {
    fn past<'a>(self, momentum: &'a [f32], velocity: &'a [f32], scale: f32) -> Past<'a> {
        let rule = Rule { momentum: self.momentum, nesterov: self.nesterov, scale };
        Past::Momentum { momentum, velocity, factor: 1.0, rule }
    }
}
