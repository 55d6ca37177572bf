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
