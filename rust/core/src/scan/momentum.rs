//! A gradient that moves a momentum, which is added to a velocity.

use super::bins::Paired;
use super::source::{Field, Remembered, Scratch, Source, is_streamed, write};
use crate::Input;
use crate::simd::Kernels;
use crate::simd::momentum::Rule;
use crate::simd::sweep::{Feedback, Found, Gather};

/// The velocity that is going to be written, without writing it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Corrected<'a> {
    pub gradient: Field<'a>,
    pub momentum: &'a [f32],
    pub velocity: &'a [f32],
    pub rule: Rule,
}

impl Corrected<'_> {
    /// The next velocity at a position.
    pub fn at(&self, i: usize) -> f32 {
        let (_, update) = self.rule.of(self.gradient.at(i), self.momentum[i]);
        update + self.velocity[i]
    }

    /// Leaves the next momentum of a block in `scratch.next`, and what is added to the velocity in
    /// `scratch.sum`.
    fn step(&self, kernels: &Kernels, at: usize, len: usize, scratch: &mut Scratch) {
        let Scratch { widened, sum, next } = scratch;
        let gradient = self.gradient.float32(kernels, at, len, widened);
        let momentum = &self.momentum[at..at + len];
        kernels.momentum(&mut next[..len], &mut sum[..len], gradient, momentum, self.rule);
    }

    /// The next velocity of a block, after [`Corrected::step`] and in place of the next momentum.
    fn add<'s>(
        &self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32] {
        let (sum, next) = (&scratch.sum[..len], &mut scratch.next[..len]);
        kernels.add(next, sum, &self.velocity[at..at + len], 1.0);
        next
    }
}

impl Source for Corrected<'_> {
    fn len(&self) -> usize {
        self.velocity.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        let (gradient, later) = self.gradient.split_at(middle);
        let (momentum, moved) = self.momentum.split_at(middle);
        let (velocity, rest) = self.velocity.split_at(middle);
        (
            Self { gradient, momentum, velocity, ..self },
            Self { gradient: later, momentum: moved, velocity: rest, ..self },
        )
    }

    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found {
        kernels.sweep(Input::F32(self.block(kernels, at, len, scratch)), None, gather)
    }

    fn swept<'a>(
        &'a self,
        _kernels: &Kernels,
        _at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        &scratch.next[..len]
    }

    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        self.step(kernels, at, len, scratch);
        self.add(kernels, at, len, scratch)
    }
}

/// Entries are gathered of the next velocity; it and the next momentum are written.
#[derive(Debug)]
pub(crate) struct Correcting<'a> {
    from: Corrected<'a>,
    momentum: &'a mut [f32],
    velocity: &'a mut [f32],
    /// Whether both are written past the caches.
    pub streams: bool,
}

impl<'a> Correcting<'a> {
    /// Writes to `momentum` and `velocity` what comes of `from`.
    pub fn new(from: Corrected<'a>, momentum: &'a mut [f32], velocity: &'a mut [f32]) -> Self {
        let streams = is_streamed(velocity.len());
        Self { from, momentum, velocity, streams }
    }
}

impl Remembered for Correcting<'_> {
    fn take<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32] {
        self.from.step(kernels, at, len, scratch);
        write(kernels, &mut self.momentum[at..at + len], &scratch.next[..len], self.streams);
        self.from.add(kernels, at, len, scratch)
    }

    fn keep(&mut self, kernels: &Kernels, at: usize, left: &mut [f32]) {
        write(kernels, &mut self.velocity[at..at + left.len()], left, self.streams);
    }
}

impl Paired for Correcting<'_> {
    // What is new in the velocity takes the place of the gradient.
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
        let velocity = self.take(kernels, at, len, scratch);
        write(kernels, &mut self.velocity[at..at + len], velocity, self.streams);
        (&scratch.sum[..len], &scratch.next[..len])
    }

    fn again<'s>(
        &'s self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32]) {
        self.from.step(kernels, at, len, scratch);
        (&scratch.sum[..len], &self.velocity[at..at + len])
    }
}

impl Source for Correcting<'_> {
    fn len(&self) -> usize {
        self.velocity.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        let (from, later) = self.from.split_at(middle);
        let (momentum, moved) = self.momentum.split_at_mut(middle);
        let (velocity, rest) = self.velocity.split_at_mut(middle);
        let streams = self.streams;
        (
            Self { from, momentum, velocity, streams },
            Self { from: later, momentum: moved, velocity: rest, streams },
        )
    }

    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found {
        self.from.step(kernels, at, len, scratch);
        let (sum, next) = (&scratch.sum[..len], &scratch.next[..len]);
        let momentum = &mut self.momentum[at..at + len];
        write(kernels, momentum, next, self.streams);
        let feedback = Feedback {
            residual: Some(&self.from.velocity[at..at + len]),
            decay: 1.0,
            sum: &mut self.velocity[at..at + len],
            streams: self.streams,
        };
        kernels.sweep(Input::F32(sum), Some(feedback), gather)
    }

    fn swept<'a>(
        &'a self,
        _kernels: &Kernels,
        at: usize,
        len: usize,
        _scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        &self.velocity[at..at + len]
    }

    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        self.from.block(kernels, at, len, scratch)
    }
}
