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
pub use steps::{Moment, Momentum};
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
    /// The same, to what a momentum makes of the gradient.
    Momentum(Momentum<'a>, Feedback<'a>),
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
            Self::Momentum(Momentum { momentum, next, stays, .. }, feedback) => {
                let Feedback { residual, sum, .. } = feedback;
                assert!(stays.is_empty() || stays.len() == len, "blocks of one length");
                [&**sum, residual, &**next, momentum]
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
            Self::Momentum(Momentum { next, stays, .. }, Feedback { sum, streams, .. }) => {
                let kept = if stays.is_empty() { &**sum } else { stays };
                *streams = streams.filter(|_| is_aligned(kept) && is_aligned(next));
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
            Self::Momentum(momentum, feedback) => {
                let (first, last) = momentum.split_at(middle);
                let (head, tail) = feedback.split_at(middle);
                (Self::Momentum(first, head), Self::Momentum(last, tail))
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
mod tests;
