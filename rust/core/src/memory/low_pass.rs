//! The low-pass filter of ScaleCom.

use super::Remember;
use crate::part::{Options, Part};
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
}

impl LowPass {
    /// What an entry's memory becomes, if it was `memory` and `left` of the sum was not sent.
    pub(crate) fn keep(self, memory: f32, left: f32) -> f32 {
        // By the general rule a negative zero would become a positive one.
        if self.beta == 1.0 { left } else { (1.0 - self.beta) * memory + self.beta * left }
    }
}

impl Part for LowPass {
    const KIND: &'static str = "low_pass";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { beta: options.get("beta")? })
    }

    fn check(self) -> Result<()> {
        let beta = self.beta;
        if beta > 0.0 && beta <= 1.0 {
            return Ok(());
        }
        Err(Error::argument(format!("beta must be in (0, 1], got {beta}")))
    }

    fn sized_as(self, _: Self) -> Self {
        self
    }

    fn examples() -> Vec<Self> {
        [1.0, 0.1, 0.37].map(|beta| Self { beta }).to_vec()
    }
}

impl Remember for LowPass {
    fn masks(self) -> bool {
        false
    }
    fn is_in_place(self) -> bool {
        false
    }
}
