//! The low-pass filter of ScaleCom.

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
    pub(super) fn check(self) -> Result<()> {
        let beta = self.beta;
        if beta > 0.0 && beta <= 1.0 {
            return Ok(());
        }
        Err(Error::argument(format!("beta must be in (0, 1], got {beta}")))
    }

    /// What an entry's memory becomes, if it was `memory` and `left` of the sum was not sent.
    pub(crate) fn keep(self, memory: f32, left: f32) -> f32 {
        // By the general rule a negative zero would become a positive one.
        if self.beta == 1.0 { left } else { (1.0 - self.beta) * memory + self.beta * left }
    }
}
