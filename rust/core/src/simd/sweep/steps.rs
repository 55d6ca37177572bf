//! Steps that are made of a gradient as it is loaded: what [`adam`] and a sweep give one after the other.

use crate::simd::adam;

/// The second moment by which a sweep makes steps of gradients, and where the next one goes: see
/// [`adam`].
#[derive(Debug)]
pub struct Moment<'a> {
    /// As many elements as the gradient.
    pub second: &'a [f32],
    /// As many elements as the gradient, and written past the caches if the sum is.
    pub next: &'a mut [f32],
    /// How both come about.
    pub rule: adam::Rule,
}

impl Moment<'_> {
    /// The same for the first elements, and for those after them.
    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { second, next, rule } = self;
        let (front, back) = next.split_at_mut(middle);
        let (old, older) = second.split_at(middle);
        (Self { second: old, next: front, rule }, Self { second: older, next: back, rule })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Addend, Feedback, Found, Gather};
    use super::*;
    use crate::Input;
    use crate::buffer::Buffer;
    use crate::simd::above::SLACK;
    use crate::simd::testing::{levels_and_lengths, tensor};
    use crate::simd::{Kernels, Level, moments};

    /// All that a sweep leaves behind.
    #[derive(Debug, PartialEq)]
    struct Outcome {
        found: Found,
        lanes: moments::Lanes,
        sum: Vec<u32>,
        next: Vec<u32>,
        indices: Vec<u32>,
        values: Vec<u32>,
    }

    const RULE: adam::Rule =
        adam::Rule { keep: 0.9, take: 0.1, correction: 1.5, eps: 1e-8, least: 0.47, rate: 0.5 };

    /// Streamed, with moments; by the kernel, or by those that it is made of.
    type Mode = (bool, bool, bool);

    fn sweep(kernels: &Kernels, x: &[f32], bound: f32, mode: Mode) -> Outcome {
        let (streams, sums, fused) = mode;
        let n = x.len();
        let residual = tensor(n, 31);
        let second: Vec<f32> = tensor(n, 32).iter().map(|v| v.abs()).collect();
        let [mut sum, mut next] = [0; 2].map(|_| Buffer::zeros(n).unwrap());
        let mut lanes = moments::Lanes::default();
        let (mut indices, mut values) = (vec![0; n + SLACK], vec![0.0; n + SLACK]);
        let moments = sums.then_some((0.2, &mut lanes));
        let gather = Gather { moments, bound, base: 5, indices: &mut indices, values: &mut values };
        let found = kernels.streaming(|streaming| {
            let feedback = Feedback {
                residual: &residual,
                decay: 1.0,
                sum: sum.as_mut_slice(),
                streams: streams.then_some(streaming),
            };
            if fused {
                let moment = Moment { second: &second, next: next.as_mut_slice(), rule: RULE };
                kernels.sweep(Input::F32(x), Addend::Steps(moment, feedback), gather)
            } else {
                let mut step = vec![0.0; n];
                kernels.adam(next.as_mut_slice(), &mut step, x, &second, RULE);
                kernels.sweep(Input::F32(&step), Addend::Residual(feedback), gather)
            }
        });
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        indices.truncate(found.count);
        values.truncate(found.count);
        let [sum, next] = [sum, next].map(|buffer| bits(buffer.as_slice()));
        Outcome { found, lanes, sum, next, indices, values: bits(&values) }
    }

    #[test]
    fn equals_the_single_kernels_on_every_level() {
        let scalar = Kernels::of(Level::Scalar).unwrap();
        levels_and_lengths(|kernels, mut x| {
            if let Some(first) = x.first_mut() {
                *first = f32::MAX;
            }
            for bound in [0.0, 0.3, f32::INFINITY] {
                for mode in 0..4 {
                    let bit = |i: u32| mode >> i & 1 != 0;
                    let mode = |fused| (bit(0), bit(1), fused);
                    let expected = sweep(scalar, &x, bound, mode(false));
                    assert_eq!(
                        sweep(kernels, &x, bound, mode(true)),
                        expected,
                        "{mode:?} {bound}",
                        mode = mode(true)
                    );
                }
            }
        });
    }

    #[test]
    fn shows_what_is_not_finite() {
        levels_and_lengths(|kernels, mut x| {
            for i in (0..x.len()).step_by(5) {
                for bad in [f32::NAN, f32::INFINITY] {
                    let kept = std::mem::replace(&mut x[i], bad);
                    let found = sweep(kernels, &x, 0.3, (true, false, true)).found;
                    assert!(found.peak >= crate::simd::peak::NON_FINITE);
                    x[i] = kept;
                }
            }
        });
    }
}
