//! Positions that are drawn, whatever the entries are.

use crate::pack::{Draw, DrawKind};
use crate::rng::Key;
use crate::scan::{Candidates, Tensor};
use crate::simd::Kernels;

/// How positions are drawn, and what becomes of the entries there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Drawn {
    /// How.
    pub kind: DrawKind,
    /// Whether values are multiplied by the elements per entry.
    pub scaled: bool,
}

impl Drawn {
    /// What is drawn with a key.
    pub fn with(self, key: Key) -> Draw {
        Draw { kind: self.kind, key }
    }

    /// Draws `k` positions of the tensor, in place of what the candidates were.
    pub fn gather(
        self,
        kernels: &Kernels,
        draw: Draw,
        tensor: &Tensor<'_>,
        k: u64,
        candidates: &mut Candidates,
        scratch: &mut Vec<u32>,
    ) {
        let numel = tensor.len() as u64;
        if !candidates.admit_memory(draw.positions_into(kernels, numel, k, scratch)) {
            return;
        }
        let values = candidates.replace(scratch);
        tensor.gather(scratch, values);
        if self.scaled && k > 0 {
            let factor = (numel as f64 / k as f64) as f32;
            // What is not finite is reported; what is must stay so.
            for value in values.iter_mut().filter(|value| value.is_finite()) {
                *value = (*value * factor).clamp(f32::MIN, f32::MAX);
            }
        }
    }
}
