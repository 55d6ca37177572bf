//! The sums that an encode is going to write, without writing any.

use super::Paired;
use super::source::{Field, Scratch, Source, fetch};
use crate::simd::Kernels;
use crate::simd::sweep::{Feedback, Found, Gather};

/// A gradient to which the residual is added, the sum kept no longer than a block is worked on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preview<'a> {
    pub gradient: Field<'a>,
    pub residual: &'a [f32],
    pub decay: f32,
}

impl<'x> Preview<'x> {
    /// The sum at a position.
    pub fn at(&self, i: usize) -> f32 {
        let kept = self.decay * self.residual[i];
        self.gradient.at(i) + kept
    }

    /// The sums of a block, in scratch memory.
    pub fn add<'s>(
        &self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32] {
        self.pair(kernels, at, len, scratch).1
    }

    /// The gradient and the sums of a block.
    fn pair<'b, 's: 'b>(
        &self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'b [f32], &'s mut [f32])
    where
        'x: 'b,
    {
        let Scratch { widened, sum, .. } = scratch;
        let gradient = self.gradient.float32(kernels, at, len, widened);
        let sum = &mut sum[..len];
        kernels.add(sum, gradient, &self.residual[at..at + len], self.decay);
        (gradient, sum)
    }
}

impl Paired for Preview<'_> {
    fn add<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32])
    where
        Self: 's,
    {
        let (gradient, sums) = self.pair(kernels, at, len, scratch);
        (gradient, sums)
    }

    fn again<'s>(
        &'s self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32]) {
        let (gradient, sums) = self.pair(kernels, at, len, scratch);
        (gradient, sums)
    }
}

impl Source for Preview<'_> {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        let (gradient, later) = self.gradient.split_at(middle);
        let (residual, late) = self.residual.split_at(middle);
        (Self { gradient, residual, ..self }, Self { gradient: later, residual: late, ..self })
    }

    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found {
        let feedback = Feedback {
            residual: Some(&self.residual[at..at + len]),
            decay: self.decay,
            sum: &mut scratch.sum[..len],
            streams: false,
        };
        kernels.sweep(self.gradient.0.range(at..at + len), Some(feedback), gather)
    }

    fn swept<'a>(
        &'a self,
        _kernels: &Kernels,
        _at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        &scratch.sum[..len]
    }

    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        self.add(kernels, at, len, scratch)
    }

    fn fetch(&self, kernels: &Kernels, at: usize) {
        self.gradient.fetch(kernels, at);
        fetch(kernels, self.residual, at);
    }
}
