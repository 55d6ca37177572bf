//! A residual in bfloat16, which is widened as it is loaded, and rounded as it is stored.

use half::bf16;

use crate::rng::Key;
use crate::simd::dither;
use crate::simd::stream::Streaming;

/// A residual in bfloat16 that a sweep adds, and what it writes.
#[derive(Debug)]
pub struct Rounded<'a> {
    /// As many elements as the gradient.
    pub residual: &'a [bf16],
    /// What the residual is multiplied by.
    pub decay: f32,
    /// Takes the sums; as many elements.
    pub sum: &'a mut [f32],
    /// What becomes of the residual, if anything.
    pub keep: Option<Keep<'a>>,
}

/// What becomes of a residual in bfloat16: the sums, rounded as [`dither`] does. Where a magnitude is
/// above the largest bfloat16, what is written is not the nearest to it: see [`dither::tame`].
#[derive(Debug)]
pub struct Keep<'a> {
    /// As many elements as the gradient.
    pub next: &'a mut [bf16],
    /// What is rounded instead of the sums, `residual + beta * gradient` with this factor, and where
    /// that goes in float32: as many elements.
    pub filter: Option<(f32, &'a mut [f32])>,
    /// What it is rounded with.
    pub key: Key,
    /// Position of the first element in the tensor.
    pub first: u32,
    /// Given to write past the caches.
    pub streams: Option<&'a Streaming<'a>>,
}

impl Rounded<'_> {
    /// The same for the first elements, and for those after them.
    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { residual, decay, sum, keep } = self;
        let (front, back) = sum.split_at_mut(middle);
        let (old, older) = residual.split_at(middle);
        let (near, far) = keep.map(|keep| keep.split_at(middle)).unzip();
        (
            Self { residual: old, decay, sum: front, keep: near },
            Self { residual: older, decay, sum: back, keep: far },
        )
    }

    /// Fails unless all that there is has so many elements.
    pub(super) fn check(&self, len: usize) {
        let Self { residual, sum, keep, .. } = self;
        let next = keep.as_ref().map(|keep| &*keep.next);
        let kept = keep.as_ref().and_then(|keep| keep.filter.as_ref()).map(|(_, kept)| kept.len());
        let lens = [residual.len(), sum.len()];
        let others = [next.map(<[_]>::len), kept];
        let mut lens = lens.into_iter().chain(others.into_iter().flatten());
        assert!(lens.all(|given| given == len), "blocks of one length");
    }

    /// Whether those that share draws are in the same group of a block.
    pub(super) fn begins_a_group(&self) -> bool {
        let first = self.keep.as_ref().map_or(0, |keep| keep.first as usize);
        first.is_multiple_of(dither::GROUP)
    }
}

impl Keep<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { next, filter, key, first, streams } = self;
        let (front, back) = next.split_at_mut(middle);
        let (near, far) = filter
            .map(|(beta, kept)| {
                let (near, far) = kept.split_at_mut(middle);
                ((beta, near), (beta, far))
            })
            .unzip();
        let later = first.wrapping_add(middle as u32);
        (
            Self { next: front, filter: near, key, first, streams },
            Self { next: back, filter: far, key, first: later, streams },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Addend, Found, Gather};
    use super::*;
    use crate::Input;
    use crate::buffer::Buffer;
    use crate::simd::above::SLACK;
    use crate::simd::testing::{levels_and_lengths, tensor};
    use crate::simd::{Kernels, Level, moments};
    use half::f16;

    /// All that a sweep leaves behind.
    #[derive(Debug, Default, PartialEq)]
    struct Outcome {
        peak: u32,
        lanes: moments::Lanes,
        sum: Vec<u32>,
        next: Vec<u16>,
        kept: Vec<u32>,
        indices: Vec<u32>,
        values: Vec<u32>,
    }

    /// What a sweep is to do.
    #[derive(Debug, Clone, Copy)]
    struct Mode {
        keep: Option<Kind>,
        sums: bool,
        first: u32,
    }

    /// How it keeps what it does.
    #[derive(Debug, Clone, Copy)]
    struct Kind {
        filters: bool,
        streams: bool,
    }

    impl Mode {
        fn filters(self) -> bool {
            self.keep.is_some_and(|keep| keep.filters)
        }
    }

    const BETA: f32 = 0.3;
    const DECAY: f32 = 0.9;
    const LOCATION: f32 = 0.2;

    /// Every mode, from the beginning of a group and from elsewhere.
    fn modes() -> impl Iterator<Item = Mode> {
        (0..10).flat_map(|number| {
            let bit = |i: u32| number >> i & 1 != 0;
            let kind = Kind { filters: bit(0), streams: bit(1) };
            let (keep, sums) = if number < 8 { (Some(kind), bit(2)) } else { (None, bit(0)) };
            [0, 192, 7, u32::MAX - 63].map(|first| Mode { keep, sums, first })
        })
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|v| v.to_bits()).collect()
    }

    fn residual(len: usize) -> Vec<bf16> {
        tensor(len, 31).into_iter().map(bf16::from_f32).collect()
    }

    fn key() -> Key {
        Key::new(1, 2, 3, 4)
    }

    fn sweep(kernels: &Kernels, x: Input<'_>, bound: f32, mode: Mode) -> Outcome {
        let Mode { keep, sums, first } = mode;
        let n = x.len();
        let (residual, mut next) = (residual(n), Buffer::zeros(n).unwrap());
        let (mut sum, mut kept) = (vec![0.0; n], vec![0.0; n]);
        let (mut indices, mut values) = (vec![0; n + SLACK], vec![0.0; n + SLACK]);
        let mut lanes = moments::Lanes::default();
        let moments = sums.then_some((LOCATION, &mut lanes));
        let gather = Gather { moments, bound, base: 5, indices: &mut indices, values: &mut values };
        let filter = mode.filters().then_some((BETA, &mut kept[..]));
        let Found { peak, count } = kernels.streaming(|streaming| {
            let keep = keep.map(|Kind { streams, .. }| Keep {
                next: next.as_mut_slice(),
                filter,
                key: key(),
                first,
                streams: streams.then_some(streaming),
            });
            let memory = Rounded { residual: &residual, decay: DECAY, sum: &mut sum, keep };
            kernels.sweep(x, Addend::Rounded(memory), gather)
        });
        Outcome {
            peak,
            lanes,
            sum: bits(&sum),
            next: next.as_slice().iter().map(|v: &bf16| v.to_bits()).collect(),
            kept: bits(&kept),
            indices: indices[..count].to_vec(),
            values: bits(&values[..count]),
        }
    }

    /// The same by the single kernels.
    fn one_by_one(x: &[f32], bound: f32, mode: Mode) -> Outcome {
        let kernels = Kernels::of(Level::Scalar).unwrap();
        let [mut old, mut sum, mut kept] = [0; 3].map(|_| vec![0.0; x.len()]);
        kernels.widen_bf16(&residual(x.len()), &mut old);
        kernels.add(&mut sum, x, &old, DECAY);
        let mut lanes = moments::Lanes::default();
        if mode.sums {
            kernels.moments(&sum, LOCATION, &mut lanes);
        }
        let (mut indices, mut values) = (vec![0; x.len() + SLACK], vec![0.0; x.len() + SLACK]);
        let count = kernels.above(&sum, bound, 5, &mut indices, &mut values);
        if mode.filters() {
            kernels.add(&mut kept, &old, x, BETA);
        }
        let mut next = vec![bf16::ZERO; x.len()];
        if mode.keep.is_some() {
            let rounded = if mode.filters() { &kept } else { &sum };
            kernels.dither(rounded, key(), mode.first, &mut next);
        }
        Outcome {
            peak: kernels.peak(&sum),
            lanes,
            sum: bits(&sum),
            next: next.into_iter().map(bf16::to_bits).collect(),
            kept: bits(&kept),
            indices: indices[..count].to_vec(),
            values: bits(&values[..count]),
        }
    }

    #[test]
    fn equals_the_single_kernels_on_every_level() {
        levels_and_lengths(|kernels, x| {
            for bound in [0.0, 0.3, f32::INFINITY] {
                for mode in modes() {
                    let expected = one_by_one(&x, bound, mode);
                    assert_eq!(sweep(kernels, Input::F32(&x), bound, mode), expected, "{mode:?}");
                }
            }
        });
    }

    #[test]
    fn elements_of_other_types_are_as_their_float32_on_every_level() {
        levels_and_lengths(|kernels, x| {
            let double: Vec<f64> = x.iter().map(|v| f64::from(*v) * (1.0 + 1e-9)).collect();
            let half: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
            let brain: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
            for (input, plain) in [
                (Input::F64(&double), double.iter().map(|v| *v as f32).collect::<Vec<_>>()),
                (Input::F16(&half), half.iter().map(|v| v.to_f32()).collect()),
                (Input::BF16(&brain), brain.iter().map(|v| v.to_f32()).collect()),
            ] {
                for mode in modes().filter(|mode| mode.first % 64 == 0) {
                    let expected = one_by_one(&plain, 0.3, mode);
                    assert_eq!(sweep(kernels, input, 0.3, mode), expected, "{mode:?}");
                }
            }
        });
    }

    #[test]
    fn shows_what_is_not_finite() {
        levels_and_lengths(|kernels, mut x| {
            for i in (0..x.len()).step_by(5) {
                for bad in [f32::NAN, f32::NEG_INFINITY] {
                    let kept = std::mem::replace(&mut x[i], bad);
                    for mode in modes().filter(|mode| mode.first < 7) {
                        let found = sweep(kernels, Input::F32(&x), 0.3, mode);
                        assert!(found.peak >= crate::simd::peak::NON_FINITE, "{mode:?}");
                    }
                    x[i] = kept;
                }
            }
        });
    }

    #[test]
    #[should_panic(expected = "blocks of one length")]
    fn a_residual_has_to_be_somewhere() {
        let (mut indices, mut values) = ([0; 64 + SLACK], [0.0; 64 + SLACK]);
        let (indices, values) = (&mut indices[..], &mut values[..]);
        let gather = Gather { moments: None, bound: 0.3, base: 0, indices, values };
        let memory = Rounded { residual: &[], decay: 1.0, sum: &mut [0.0; 64], keep: None };
        Kernels::current().sweep(Input::F32(&[1.0; 64]), Addend::Rounded(memory), gather);
    }
}
