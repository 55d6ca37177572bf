//! The hot loop: adds the residual, writes the sum, and gathers peak, moments and candidates at once.
//!
//! A sweep gives what [`add`](super::add), [`peak`](super::peak), [`moments`] and
//! [`above`](super::above) give one after the other, to the last bit. In one loop the loads of the
//! next elements are under way while these are worked on, which is worth more than anything the
//! single kernels could save: measured on 100 MB, 1.0 against 1.8 times a plain copy. For the same
//! reason elements of other types are made float32 as they are loaded, as [`widen`](super::widen)
//! does it, not by that kernel before.

use super::moments;
use super::stream::Streaming;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod element;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod feed;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod groups;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod make;
mod rounded;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod run;
mod scalar;
mod steps;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use aarch64::neon;
pub use rounded::{Keep, Rounded};
pub(in crate::simd) use scalar::run as scalar;
pub use steps::Moment;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{avx2, avx512};

/// The residual that a sweep adds, and where it writes the sum.
#[derive(Debug)]
pub struct Feedback<'a> {
    /// As many elements as the gradient.
    pub residual: &'a [f32],
    /// What the residual is multiplied by.
    pub decay: f32,
    /// As many elements as the gradient.
    pub sum: &'a mut [f32],
    /// Given to write past the caches.
    pub streams: Option<&'a Streaming<'a>>,
}

impl Feedback<'_> {
    /// The same for the first elements, and for those after them.
    fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { residual, decay, sum, streams } = self;
        let (front, back) = sum.split_at_mut(middle);
        let (old, older) = residual.split_at(middle);
        (
            Self { residual: old, decay, sum: front, streams },
            Self { residual: older, decay, sum: back, streams },
        )
    }
}

/// What a sweep adds to a gradient.
#[derive(Debug)]
pub enum Addend<'a> {
    /// Nothing.
    None,
    /// A residual.
    Residual(Feedback<'a>),
    /// The same, to steps that are made of the gradient.
    Steps(Moment<'a>, Feedback<'a>),
    /// A residual in bfloat16.
    Rounded(Rounded<'a>),
}

impl Addend<'_> {
    /// Fails unless all that there is has so many elements.
    fn check(&self, len: usize) {
        let given = match self {
            Self::None => return,
            Self::Residual(Feedback { residual, sum, .. }) => [&**sum, residual, sum, residual],
            Self::Steps(moment, Feedback { residual, sum, .. }) => {
                [&**sum, residual, &*moment.next, moment.second]
            }
            Self::Rounded(memory) => return memory.check(len),
        };
        let same = given.into_iter().all(|given| given.len() == len);
        assert!(same, "blocks of one length");
    }

    /// Whether those that share draws are in the same group of a block.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    fn begins_a_group(&self) -> bool {
        if let Self::Rounded(memory) = self { memory.begins_a_group() } else { true }
    }

    /// Streams no more to what does not begin on a cache line.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    fn stream_if_aligned(&mut self) {
        fn is_aligned<T>(x: &[T]) -> bool {
            x.as_ptr().addr().is_multiple_of(64)
        }
        match self {
            Self::None | Self::Rounded(Rounded { keep: None, .. }) => {}
            Self::Residual(Feedback { sum, streams, .. }) => {
                *streams = streams.filter(|_| is_aligned(sum));
            }
            Self::Steps(Moment { next, .. }, Feedback { sum, streams, .. }) => {
                *streams = streams.filter(|_| is_aligned(sum) && is_aligned(next));
            }
            Self::Rounded(Rounded { keep: Some(keep), .. }) => {
                keep.streams = keep.streams.filter(|_| is_aligned(keep.next));
            }
        }
    }

    /// The same for the first elements, and for those after them.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::Residual(feedback) => {
                let (head, tail) = feedback.split_at(middle);
                (Self::Residual(head), Self::Residual(tail))
            }
            Self::Steps(moment, feedback) => {
                let (first, last) = moment.split_at(middle);
                let (head, tail) = feedback.split_at(middle);
                (Self::Steps(first, head), Self::Steps(last, tail))
            }
            Self::Rounded(memory) => {
                let (head, tail) = memory.split_at(middle);
                (Self::Rounded(head), Self::Rounded(tail))
            }
        }
    }
}

/// What to gather from a block.
#[derive(Debug)]
pub struct Gather<'a> {
    /// A location, and the sums of exceedances over it to add to, if they are wanted.
    pub moments: Option<(f32, &'a mut moments::Lanes)>,
    /// Entries whose magnitude is above this are compacted; none are above infinity.
    pub bound: f32,
    /// Position of the block's first element.
    pub base: u32,
    /// Takes the positions; [`above::SLACK`](super::above::SLACK) longer than the block.
    pub indices: &'a mut [u32],
    /// Takes the values; as long.
    pub values: &'a mut [f32],
}

impl Gather<'_> {
    /// Fails unless so many candidates have room.
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    fn check_capacity(&self, len: usize) {
        let capacity = len + super::above::SLACK;
        assert!(
            self.indices.len() >= capacity && self.values.len() >= capacity,
            "room for candidates"
        );
    }

    /// The same for what is left of a block of which so many elements are done, and what was found.
    fn after(self, done: usize, found: Found) -> Self {
        let Self { moments, bound, base, indices, values } = self;
        let (indices, values) = (&mut indices[found.count..], &mut values[found.count..]);
        Self { moments, bound, base: base + done as u32, indices, values }
    }
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Bits of the largest magnitude.
    pub peak: u32,
    /// Entries compacted.
    pub count: usize,
}

impl Found {
    /// The same, and what was found in what was left.
    fn and(self, last: Self) -> Self {
        Self { peak: self.peak.max(last.peak), count: self.count + last.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Input;
    use crate::buffer::Buffer;
    use crate::simd::above::SLACK;
    use crate::simd::testing::{levels_and_lengths, tensor};
    use crate::simd::{Kernels, Level};
    use half::{bf16, f16};

    /// All that a sweep leaves behind.
    #[derive(Debug, PartialEq)]
    struct Outcome {
        found: Found,
        sums: moments::Lanes,
        sum: Vec<u32>,
        indices: Vec<u32>,
        values: Vec<u32>,
    }

    /// What a sweep is to do: add, stream, take moments.
    type Mode = (bool, bool, bool);

    fn sweep(kernels: &Kernels, x: Input<'_>, bound: f32, mode: Mode) -> Outcome {
        let (adds, streams, sums) = mode;
        let location = location(bound);
        let residual = tensor(x.len(), 31);
        let mut sum = Buffer::zeros(x.len()).unwrap();
        let mut lanes = moments::Lanes::default();
        let (mut indices, mut values) = (vec![0; x.len() + SLACK], vec![0.0; x.len() + SLACK]);
        let gather = Gather {
            moments: sums.then_some((location, &mut lanes)),
            bound,
            base: 5,
            indices: &mut indices,
            values: &mut values,
        };
        let found = kernels.streaming(|streaming| {
            let feedback = adds.then(|| Feedback {
                residual: &residual,
                decay: 0.9,
                sum: sum.as_mut_slice(),
                streams: streams.then_some(streaming),
            });
            kernels.sweep(x, feedback.map_or(Addend::None, Addend::Residual), gather)
        });
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        indices.truncate(found.count);
        values.truncate(found.count);
        Outcome { found, sums: lanes, sum: bits(sum.as_slice()), indices, values: bits(&values) }
    }

    /// A location that goes with a bound: below it, or none.
    fn location(bound: f32) -> f32 {
        if bound < 1.0 { 0.5 * bound } else { 0.0 }
    }

    /// The same by the single kernels.
    fn one_by_one(x: &[f32], bound: f32, mode: Mode) -> Outcome {
        let kernels = Kernels::of(Level::Scalar).unwrap();
        let (adds, _, sums) = mode;
        let location = location(bound);
        let mut sum = vec![0.0; x.len()];
        if adds {
            kernels.add(&mut sum, x, &tensor(x.len(), 31), 0.9);
        }
        let block = if adds { &sum } else { x };
        let mut lanes = moments::Lanes::default();
        if sums {
            kernels.moments(block, location, &mut lanes);
        }
        let (mut indices, mut values) = (vec![0; x.len() + SLACK], vec![0.0; x.len() + SLACK]);
        let count = kernels.above(block, bound, 5, &mut indices, &mut values);
        let found = Found { peak: kernels.peak(block), count };
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        indices.truncate(count);
        values.truncate(count);
        Outcome { found, sums: lanes, sum: bits(&sum), indices, values: bits(&values) }
    }

    #[test]
    fn equals_the_single_kernels_on_every_level() {
        levels_and_lengths(|kernels, x| {
            for bound in [0.0, 0.3, 0.6, 1e29, f32::INFINITY] {
                for mode in 0..8 {
                    let bit = |i: u32| mode >> i & 1 != 0;
                    let mode = (bit(0), bit(1), bit(2));
                    let expected = one_by_one(&x, bound, mode);
                    let x = Input::F32(&x);
                    assert_eq!(sweep(kernels, x, bound, mode), expected, "{mode:?} {bound}");
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
            for (narrow, plain) in [
                (Input::F64(&double), double.iter().map(|v| *v as f32).collect::<Vec<_>>()),
                (Input::F16(&half), half.iter().map(|v| v.to_f32()).collect()),
                (Input::BF16(&brain), brain.iter().map(|v| v.to_f32()).collect()),
            ] {
                for mode in 0..16 {
                    let bound = if mode < 8 { 0.3 } else { f32::INFINITY };
                    let bit = |i: u32| mode >> i & 1 != 0;
                    let mode = (bit(0), bit(1), bit(2));
                    let expected = one_by_one(&plain, bound, mode);
                    assert_eq!(sweep(kernels, narrow, bound, mode), expected, "{mode:?} {bound}");
                }
            }
        });
    }

    #[test]
    fn shows_what_is_not_finite_in_any_type() {
        levels_and_lengths(|kernels, x| {
            let mut half: Vec<f16> = x.iter().map(|_| f16::ONE).collect();
            let mut brain: Vec<bf16> = x.iter().map(|_| bf16::ONE).collect();
            let mut double: Vec<f64> = x.iter().map(|_| 1.0).collect();
            for i in (0..x.len()).step_by(7) {
                let kept = (half[i], brain[i], double[i]);
                // Beyond float32, a double is infinite.
                (half[i], brain[i], double[i]) = (f16::NAN, bf16::NEG_INFINITY, -1e300);
                for input in [Input::F16(&half), Input::BF16(&brain), Input::F64(&double)] {
                    let found = sweep(kernels, input, 0.3, (false, false, false)).found;
                    assert!(found.peak >= crate::simd::peak::NON_FINITE);
                }
                (half[i], brain[i], double[i]) = kept;
            }
        });
    }

    #[test]
    fn shows_what_is_not_finite() {
        levels_and_lengths(|kernels, mut x| {
            for i in 0..x.len() {
                let kept = std::mem::replace(&mut x[i], f32::NAN);
                let found = sweep(kernels, Input::F32(&x), 0.3, (true, true, false)).found;
                assert!(found.peak >= crate::simd::peak::NON_FINITE);
                x[i] = kept;
            }
        });
    }
}
