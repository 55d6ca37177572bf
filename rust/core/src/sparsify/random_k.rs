//! Random-k: randomly drawn positions, the same on all ranks.
//!
//! The selection does not depend on the data. Every drawn entry is sent, including zeros, so that
//! ranks with the same positions can add up their values without exchanging positions.

use super::{Amount, Scanned, Selected};
use crate::Result;
use crate::pack::{Draw, DrawKind};
use crate::rng::Key;
use crate::scan::{Survivors, View};
use crate::simd::Kernels;

/// The options of random-k.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomK {
    /// How many entries.
    pub amount: Amount,
    /// One run of consecutive entries that begins anywhere, instead of entries all over the tensor.
    pub block: bool,
    /// Ranks that agree on it, on the tensor's name and on the step draw the same positions.
    pub seed: u64,
    /// Values times n / k: then the decoded tensor is the input in expectation.
    pub scaled: bool,
}

impl RandomK {
    pub(super) fn check(self) -> Result<()> {
        self.amount.check()
    }

    /// What is drawn with a key.
    pub(super) fn draw(self, key: Key) -> Draw {
        let kind = if self.block { DrawKind::Run } else { DrawKind::Subset };
        Draw { kind, key }
    }

    pub(super) fn select(self, draw: Draw, scanned: &mut Scanned<'_, '_>) -> Selected {
        let k = self.amount.of(scanned.numel());
        let Scanned { field, scanner, scratch, .. } = scanned;
        let kernels = scanner.kernels;
        self.gather(kernels, draw, field, k, scanner.survivors_mut(), scratch);
        Selected { target: Some(k), threshold: 0.0, magnitude: None }
    }

    /// Draws `k` positions of the tensor, in place of what the survivors were.
    pub(crate) fn gather(
        self,
        kernels: &Kernels,
        draw: Draw,
        field: &View<'_>,
        k: u64,
        survivors: &mut Survivors,
        scratch: &mut Vec<u32>,
    ) {
        use crate::scan::Source;
        let numel = field.len() as u64;
        if !survivors.admit_memory(draw.positions_into(kernels, numel, k, scratch)) {
            return;
        }
        let values = survivors.replace(scratch);
        field.gather(scratch, values);
        if self.scaled && k > 0 {
            let factor = (numel as f64 / k as f64) as f32;
            // What is not finite is reported; what is must stay so.
            for value in values.iter_mut().filter(|value| value.is_finite()) {
                *value = (*value * factor).clamp(f32::MIN, f32::MAX);
            }
        }
    }
}
