//! A gradient and a memory that takes in a part of it only.

use super::bins::Paired;
use super::preview::Preview;
use super::source::{Field, Remembered, Scratch, Source, is_streamed, write};
use crate::Input;
use crate::memory;
use crate::simd::Kernels;
use crate::simd::sweep::{Feedback, Found, Gather};

/// Entries are gathered of `memory + gradient`; `memory + beta * gradient` is written.
///
/// The first is kept no longer than a block is worked on. Adding twice costs little: both operands
/// are in the L1 cache the second time.
#[derive(Debug)]
pub(crate) struct LowPass<'a> {
    gradient: Field<'a>,
    memory: &'a [f32],
    filter: memory::LowPass,
    next: &'a mut [f32],
    streams: bool,
}

impl<'a> LowPass<'a> {
    pub fn new(
        gradient: Field<'a>,
        memory: &'a [f32],
        filter: memory::LowPass,
        next: &'a mut [f32],
    ) -> Self {
        let streams = is_streamed(next.len());
        Self { gradient, memory, filter, next, streams }
    }

    /// Writes down what the memory becomes of a block of which nothing is sent.
    fn remember(&mut self, kernels: &Kernels, at: usize, gradient: &[f32], next: &mut [f32]) {
        let range = at..at + gradient.len();
        let (memory, target) = (&self.memory[range.clone()], &mut self.next[range]);
        if self.streams {
            kernels.add(next, memory, gradient, self.filter.beta);
            kernels.stream(target, next);
        } else {
            kernels.add(target, memory, gradient, self.filter.beta);
        }
    }

    fn preview(&self) -> Preview<'_> {
        Preview { gradient: self.gradient, residual: self.memory, decay: 1.0 }
    }
}

impl Remembered for LowPass<'_> {
    fn take<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32] {
        self.preview().add(kernels, at, len, scratch)
    }

    fn keep(&mut self, kernels: &Kernels, at: usize, left: &mut [f32]) {
        let range = at..at + left.len();
        for (left, &memory) in left.iter_mut().zip(&self.memory[range.clone()]) {
            *left = self.filter.keep(memory, *left);
        }
        write(kernels, &mut self.next[range], left, self.streams);
    }
}

impl Paired for LowPass<'_> {
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
        let Scratch { widened, sum, next } = scratch;
        let gradient = self.gradient.float32_once(kernels, at, len, widened);
        kernels.add(&mut sum[..len], gradient, &self.memory[at..at + len], 1.0);
        self.remember(kernels, at, gradient, &mut next[..len]);
        (gradient, &sum[..len])
    }

    fn again<'s>(
        &'s self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32]) {
        let Scratch { widened, sum, .. } = scratch;
        let gradient = self.gradient.float32(kernels, at, len, widened);
        kernels.add(&mut sum[..len], gradient, &self.memory[at..at + len], 1.0);
        (gradient, &sum[..len])
    }
}

impl Source for LowPass<'_> {
    fn len(&self) -> usize {
        self.next.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        let (gradient, later) = self.gradient.split_at(middle);
        let (memory, late) = self.memory.split_at(middle);
        let (next, rest) = self.next.split_at_mut(middle);
        let (filter, streams) = (self.filter, self.streams);
        (
            Self { gradient, memory, filter, next, streams },
            Self { gradient: later, memory: late, filter, next: rest, streams },
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
        let Scratch { widened, sum, next } = scratch;
        let gradient = self.gradient.float32_once(kernels, at, len, widened);
        let memory = &self.memory[at..at + len];
        let feedback =
            Feedback { residual: Some(memory), decay: 1.0, sum: &mut sum[..len], streams: false };
        let found = kernels.sweep(Input::F32(gradient), Some(feedback), gather);
        self.remember(kernels, at, gradient, &mut next[..len]);
        found
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
        self.preview().add(kernels, at, len, scratch)
    }
}
