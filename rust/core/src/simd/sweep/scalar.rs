//! The single kernels one after the other, while the block is in the cache.

use super::{Addend, Feedback, Found, Gather, Keep, Moment, Momentum, Rounded};
use crate::Input;
use crate::simd::{BLOCK, above, adam, add, dither, moments, momentum, peak, widen};

pub(in crate::simd) fn run(x: Input<'_>, memory: Addend<'_>, gather: Gather<'_>) -> Found {
    memory.check(x.len());
    of_float32(float32(x, &mut [0.0; BLOCK]), memory, gather)
}

/// A block as float32, in `plain` if it is not.
fn float32<'s>(x: Input<'s>, plain: &'s mut [f32; BLOCK]) -> &'s [f32] {
    let plain = &mut plain[..x.len()];
    match x {
        Input::F32(x) => return x,
        Input::F64(x) => widen::from_f64::scalar(x, plain),
        Input::F16(x) => widen::from_f16::scalar(x, plain),
        Input::BF16(x) => widen::from_bf16::scalar(x, plain),
    }
    plain
}

/// The sweep of elements that are float32.
pub(super) fn of_float32(x: &[f32], memory: Addend<'_>, gather: Gather<'_>) -> Found {
    match memory {
        Addend::None => gathered(x, gather),
        Addend::Residual(feedback) => added(x, feedback, gather),
        Addend::Steps(Moment { second, next, rule }, feedback) => {
            let step = &mut [0.0; BLOCK][..x.len()];
            adam::scalar(next, step, x, second, rule);
            added(step, feedback, gather)
        }
        Addend::Momentum(Momentum { momentum: old, next, stays, rule }, feedback) => {
            let step = &mut [0.0; BLOCK][..x.len()];
            momentum::scalar(next, step, x, old, rule);
            if !stays.is_empty() {
                stays.copy_from_slice(feedback.residual);
            }
            added(step, feedback, gather)
        }
        Addend::Rounded(Rounded { residual, decay, sum, keep }) => {
            let mut old = [0.0; BLOCK];
            let old = &mut old[..x.len()];
            widen::from_bf16::scalar(residual, old);
            let feedback = Feedback { residual: old, decay, sum: &mut *sum, streams: None };
            let found = added(x, feedback, gather);
            if let Some(Keep { next, filter, key, first, .. }) = keep {
                let kept = match filter {
                    None => sum,
                    Some((beta, kept)) => {
                        add::scalar(kept, old, x, beta);
                        kept
                    }
                };
                dither::scalar(kept, key, first, next);
            }
            found
        }
    }
}

/// Adds a residual, and gathers from the sums.
fn added(x: &[f32], feedback: Feedback<'_>, gather: Gather<'_>) -> Found {
    let Feedback { residual, decay, sum, .. } = feedback;
    add::scalar(sum, x, residual, decay);
    gathered(sum, gather)
}

fn gathered(block: &[f32], gather: Gather<'_>) -> Found {
    let Gather { moments: lanes, bound, base, indices, values } = gather;
    if let Some((location, lanes)) = lanes {
        moments::scalar(block, location, lanes);
    }
    let count = above::scalar(block, bound, base, indices, values);
    Found { peak: peak::scalar(block), count }
}
