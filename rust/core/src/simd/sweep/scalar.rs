//! The single kernels one after the other, while the block is in the cache.

use super::{Feedback, Found, Gather};
use crate::simd::{above, add, moments, peak};

pub(in crate::simd) fn run(x: &[f32], feedback: Option<Feedback<'_>>, gather: Gather<'_>) -> Found {
    let Gather { moments: lanes, bound, base, indices, values } = gather;
    let block = match feedback {
        Some(Feedback { residual, decay, sum, .. }) => {
            match residual {
                Some(residual) => add::scalar::run(sum, x, residual, decay),
                None => add_in_place(sum, x, decay),
            }
            &*sum
        }
        None => x,
    };
    if let Some((location, lanes)) = lanes {
        moments::scalar::run(block, location, lanes);
    }
    let count = above::scalar::run(block, bound, base, indices, values);
    Found { peak: peak::scalar::run(block), count }
}

/// As [`add`], where the residual is what the sum overwrites.
fn add_in_place(sum: &mut [f32], gradient: &[f32], decay: f32) {
    for (s, &g) in sum.iter_mut().zip(gradient) {
        *s = g + decay * *s;
    }
}
