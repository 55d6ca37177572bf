//! How a memory in bfloat16 is written: as it is swept, or block by block.

use std::ops::Range;

use half::bf16;

use super::next::{Filter, is_streamed};
use super::parallel::Split;
use crate::rng::Key;
use crate::simd::stream::Streaming;
use crate::simd::sweep::Keep;
use crate::simd::{Kernels, dither};

/// What is written of a memory in bfloat16, rounded by chance.
#[derive(Debug)]
pub(crate) struct Rounded<'a> {
    memory: &'a mut [bf16],
    filter: Filter,
    key: Key,
    /// The moment beside it, and what that is rounded with.
    moment: Option<(&'a mut [bf16], Key)>,
    /// Position of the first element in the tensor.
    first: u32,
    /// Whether a sweep writes past the caches.
    streams: bool,
}

impl<'a> Rounded<'a> {
    /// All of a memory, and of a moment beside it.
    pub fn new(
        memory: &'a mut [bf16],
        filter: Filter,
        key: Key,
        moment: Option<(&'a mut [bf16], Key)>,
    ) -> Self {
        let streams = is_streamed(memory.len());
        Self { memory, filter, key, moment, first: 0, streams }
    }

    /// Whether it becomes what a filter takes in, and not the sums.
    pub fn filters(&self) -> bool {
        !self.filter.is_all()
    }

    /// What a sweep keeps of a block, of which it leaves what a filter takes in `beside` the sums.
    pub fn keep<'s>(
        &'s mut self,
        kernels: &'s Streaming<'s>,
        range: &Range<usize>,
        beside: &'s mut [f32],
    ) -> Keep<'s> {
        let filter = self.filters().then_some((self.filter.beta, beside));
        let first = self.first.wrapping_add(range.start as u32);
        let next = &mut self.memory[range.clone()];
        let streams = self.streams.then_some(kernels);
        Keep { next, filter, key: self.key, first, streams }
    }

    /// Writes what becomes of a block of which nothing is sent: of what is new in it and old, and of the
    /// sums, the largest of which has the bits of `peak`. What is `beside` is free.
    pub fn write_block(
        &mut self,
        kernels: &Kernels,
        range: &Range<usize>,
        (new, old): (&[f32], &[f32]),
        (sums, peak): (&[f32], u32),
        beside: &mut [f32],
    ) {
        if self.filters() {
            kernels.add(beside, old, new, self.filter.beta);
            return self.write(kernels, range, beside);
        }
        if peak <= dither::LARGEST {
            return self.write_tame(kernels, range, sums);
        }
        self.tame(kernels, range, (sums, peak), beside);
    }

    /// Writes a block that was swept once more where something in it is beyond the largest bfloat16:
    /// of the sums, the largest of which has the bits of `peak`, or of what a filter left `beside`.
    pub fn tame(
        &mut self,
        kernels: &Kernels,
        range: &Range<usize>,
        (sums, peak): (&[f32], u32),
        beside: &mut [f32],
    ) {
        let filters = self.filters();
        let peak = if filters { kernels.peak(beside) } else { peak };
        if peak <= dither::LARGEST {
            return;
        }
        if !filters {
            // A copy: whoever reads the sums has to find what is not finite.
            beside.copy_from_slice(sums);
        }
        dither::tame(beside);
        self.write_tame(kernels, range, beside);
    }

    /// Rounds what becomes of a block of the moment, if there is one, and writes it.
    #[inline(always)]
    pub fn write_moment(&mut self, kernels: &Kernels, range: &Range<usize>, block: &mut [f32]) {
        let Some((moment, key)) = &mut self.moment else { return };
        if kernels.peak(block) > dither::LARGEST {
            dither::tame(block);
        }
        let first = self.first.wrapping_add(range.start as u32);
        kernels.dither(block, *key, first, &mut moment[range.clone()]);
    }

    /// Rounds a block and writes it. What is not finite, which the encode will find, becomes zero.
    pub fn write(&mut self, kernels: &Kernels, range: &Range<usize>, block: &mut [f32]) {
        if kernels.peak(block) > dither::LARGEST {
            dither::tame(block);
        }
        self.write_tame(kernels, range, block);
    }

    /// The same of a block in which nothing is beyond the largest bfloat16.
    fn write_tame(&mut self, kernels: &Kernels, range: &Range<usize>, block: &[f32]) {
        let first = self.first.wrapping_add(range.start as u32);
        kernels.dither(block, self.key, first, &mut self.memory[range.clone()]);
    }

    /// Makes what is left of a block what a filter keeps of it.
    pub fn filter(&self, old: &[bf16], left: &mut [f32]) {
        for (left, old) in left.iter_mut().zip(old) {
            *left = self.filter.left(old.to_f32(), *left);
        }
    }
}

impl Split for Rounded<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let (memory, rest) = self.memory.split_at_mut(middle);
        let later = self.first.wrapping_add(middle as u32);
        let (moment, later_moment) = self
            .moment
            .map(|(moment, key)| {
                let (moment, rest) = moment.split_at_mut(middle);
                ((moment, key), (rest, key))
            })
            .unzip();
        let Self { filter, key, first, streams, .. } = self;
        (
            Self { memory, filter, key, moment, first, streams },
            Self { memory: rest, filter, key, moment: later_moment, first: later, streams },
        )
    }
}
