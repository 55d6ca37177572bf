//! The single kernels one after the other, while the block is in the cache.

use super::{Feedback, Found, Gather};
use crate::Input;
use crate::simd::{BLOCK, above, add, moments, normal_or_zero, peak, widen};

pub(in crate::simd) fn run(
    x: Input<'_>,
    feedback: Option<Feedback<'_>>,
    gather: Gather<'_>,
) -> Found {
    of_float32(float32(x, &mut [0.0; BLOCK]), feedback, gather)
}

/// A block as float32, in `plain` if it is not.
pub(super) fn float32<'s>(x: Input<'s>, plain: &'s mut [f32; BLOCK]) -> &'s [f32] {
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
pub(super) fn of_float32(x: &[f32], feedback: Option<Feedback<'_>>, gather: Gather<'_>) -> Found {
    let Gather { moments: lanes, bound, base, indices, values } = gather;
    let block = match feedback {
        Some(Feedback { residual, decay, sum, .. }) => {
            match residual {
                Some(residual) => add::scalar(sum, x, residual, decay),
                None => add_in_place(sum, x, decay),
            }
            &*sum
        }
        None => x,
    };
    if let Some((location, lanes)) = lanes {
        moments::scalar(block, location, lanes);
    }
    let count = above::scalar(block, bound, base, indices, values);
    Found { peak: peak::scalar(block), count }
}

/// As [`add`], where the residual is what the sum overwrites.
fn add_in_place(sum: &mut [f32], gradient: &[f32], decay: f32) {
    for (s, &g) in sum.iter_mut().zip(gradient) {
        *s = normal_or_zero(g + decay * *s);
    }
}
