//! A tensor that is read, and what its memory becomes meanwhile.

use std::ops::Range;

use half::bf16;

use super::block::{Block, Places, Scratch};
use super::next::Next;
use super::parallel::Split;
use super::tensor::{Past, Tensor, Terms};
use crate::Input;
use crate::simd::adam::Rule;
use crate::simd::stream::Streaming;
use crate::simd::sweep::{Addend, Feedback, Found, Gather, Moment, Momentum, Rounded};
use crate::simd::{Kernels, momentum};

/// A tensor, and where that is written which its memory becomes.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    tensor: Tensor<'a>,
    next: Next<'a>,
}

impl<'a> Update<'a> {
    /// Writes `next` while `tensor` is read.
    pub fn new(tensor: Tensor<'a>, next: Next<'a>) -> Self {
        Self { tensor, next }
    }

    pub fn len(&self) -> usize {
        self.tensor.len()
    }

    /// What there is to encode of what was not written yet.
    #[inline(always)]
    pub fn tensor(&self) -> Tensor<'_> {
        self.tensor
    }

    /// As [`Tensor::fetch`].
    #[inline(always)]
    pub fn fetch(&self, kernels: &Kernels, at: usize) {
        self.tensor.fetch(kernels, at);
    }

    /// Whether anything is written.
    pub fn writes(&self) -> bool {
        !matches!(self.next, Next::None)
    }

    /// Whether the sums are in memory once all was read.
    pub(super) fn leaves_sums(&self) -> bool {
        match self.next {
            Next::Sums { .. } => true,
            Next::Filtered { .. } | Next::Stays { .. } | Next::Rounded(_) => false,
            Next::None => matches!(self.tensor.memory, Past::None),
        }
    }

    /// Has sums that are written, and read again right after it, stay in the caches.
    pub(super) fn keep_cached(&mut self) {
        self.next.keep_cached();
    }

    /// Reads a block, writes what its memory becomes, and gathers from the sums.
    pub fn sweep(&mut self, block: Block<'_>, gather: Gather<'_>) -> Found {
        match self.tensor.memory {
            Past::Adam { second, residual, rule } => {
                return self.sweep_steps((second, residual, rule), block, gather);
            }
            Past::Momentum { momentum, velocity, factor, rule } => {
                return self.sweep_momentum((momentum, velocity), (factor, rule), block, gather);
            }
            Past::Rounded { residual, .. } | Past::RoundedAdam { residual, .. } => {
                return self.sweep_rounded(residual, block, gather);
            }
            _ => {}
        }
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let Tensor { gradient, memory } = self.tensor;
        let input = gradient.0.range(range.clone());
        // What is written beside the sums depends on the gradient, too, which is read once.
        let once = self.next.filters();
        let (new, decay) = match memory {
            Past::None => return kernels.sweep(input, Addend::None, gather),
            // The loop makes the elements float32 itself.
            Past::Residual { decay, .. } if !once => (input, decay),
            past => {
                let Terms { new, old, beside } = past.terms(gradient, kernels, range, places, once);
                let decay = old.map_or(1.0, |(_, decay)| decay);
                self.next.write_beside(kernels, range, (new, memory.old(range)), beside);
                (Input::F32(new), decay)
            }
        };
        let residual = memory.old(range);
        let (sum, streams) = match &mut self.next {
            Next::Sums { sums, streams, .. } => (&mut sums[range.clone()], *streams),
            _ => (&mut sums[..range.len()], false),
        };
        let feedback = Feedback { residual, decay, sum, streams: streams.then_some(kernels) };
        kernels.sweep(new, Addend::Residual(feedback), gather)
    }

    /// The same of steps that a loop makes of gradients, as it adds them.
    fn sweep_steps(
        &mut self,
        (second, residual, rule): (&[f32], &[f32], Rule),
        block: Block<'_>,
        gather: Gather<'_>,
    ) -> Found {
        let Block { kernels, range, scratch } = block;
        let Scratch { places, sums: unused } = scratch;
        let spare = &mut places.beside;
        let x = self.tensor.gradient.0.range(range.clone());
        let (second, residual) = (&second[range.clone()], &residual[range.clone()]);
        let (next, sum, streams) = match &mut self.next {
            Next::Sums { sums, beside, streams } => {
                (&mut beside[range.clone()], &mut sums[range], *streams)
            }
            _ => (&mut spare[..range.len()], &mut unused[..range.len()], false),
        };
        let moment = Moment { second, next, rule };
        let streams = streams.then_some(kernels);
        let feedback = Feedback { residual, decay: 1.0, sum, streams };
        kernels.sweep(x, Addend::Steps(moment, feedback), gather)
    }

    /// The same of what a loop has a momentum make of gradients, as it adds it.
    fn sweep_momentum(
        &mut self,
        (momentum, velocity): (&[f32], &[f32]),
        (decay, rule): (f32, momentum::Rule),
        block: Block<'_>,
        gather: Gather<'_>,
    ) -> Found {
        let Block { kernels, range, scratch } = block;
        let Scratch { places, sums: unused } = scratch;
        let (len, spare) = (range.len(), &mut places.beside);
        let x = self.tensor.gradient.0.range(range.clone());
        let (momentum, residual) = (&momentum[range.clone()], &velocity[range.clone()]);
        let (next, stays, sum, streams) = match &mut self.next {
            Next::Sums { sums, beside, streams } => {
                (&mut beside[range.clone()], &mut [][..], &mut sums[range], *streams)
            }
            Next::Stays { memory, beside, streams } => {
                (&mut beside[range.clone()], &mut memory[range], &mut unused[..len], *streams)
            }
            _ => (&mut spare[..len], &mut [][..], &mut unused[..len], false),
        };
        let moved = Momentum { momentum, next, stays, rule };
        let streams = streams.then_some(kernels);
        let feedback = Feedback { residual, decay, sum, streams };
        kernels.sweep(x, Addend::Momentum(moved, feedback), gather)
    }

    /// The same of a residual in bfloat16, which a loop widens and rounds as it adds it to the gradient,
    /// or to steps that were made of that.
    fn sweep_rounded(&mut self, residual: &[bf16], block: Block<'_>, gather: Gather<'_>) -> Found {
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let Tensor { gradient, memory } = self.tensor;
        let residual = &residual[range.clone()];
        let Places { gradient: widened, old, step, beside } = places;
        let (sums, beside) = (&mut sums[..range.len()], &mut beside[..range.len()]);
        let (input, decay) = match memory {
            Past::RoundedAdam { second, rule, .. } => {
                let (step, old) = (&mut step[..range.len()], &mut old[..range.len()]);
                let new = gradient.float32(kernels, range.clone(), widened);
                kernels.widen_bf16(&second[range.clone()], old);
                kernels.adam(beside, step, new, old, rule);
                self.next.write_moment(kernels, range, beside);
                (Input::F32(step), 1.0)
            }
            Past::Rounded { decay, .. } => (gradient.0.range(range.clone()), decay),
            _ => (gradient.0.range(range.clone()), 1.0),
        };
        let keep = match &mut self.next {
            Next::Rounded(next) => Some(next.keep(kernels, range, beside)),
            _ => None,
        };
        let memory = Rounded { residual, decay, sum: &mut *sums, keep };
        let found = kernels.sweep(input, Addend::Rounded(memory), gather);
        if let Next::Rounded(next) = &mut self.next {
            next.tame(kernels, range, (sums, found.peak), beside);
        }
        found
    }

    /// The sums of the block that was swept last, if they were not streamed away.
    pub fn swept<'s>(&'s self, block: Block<'s>) -> &'s [f32] {
        let range = block.range.clone();
        match (&self.next, self.tensor.memory) {
            (Next::Rounded(_), _) => &block.scratch.sums[..range.len()],
            (Next::Sums { sums, .. }, _) => &sums[range],
            (_, Past::None) => self.tensor.sums(block),
            _ => &block.scratch.sums[..range.len()],
        }
    }

    /// Reads a block and writes what its memory becomes; what is new in the sums, and the sums.
    pub fn pair<'s>(&mut self, block: Block<'s>) -> (&'s [f32], &'s [f32])
    where
        'a: 's,
    {
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let (Tensor { gradient, memory }, once) = (self.tensor, self.next.filters());
        let terms = memory.terms(gradient, kernels, range, places, once);
        let (new, Some((old, decay))) = (terms.new, terms.old) else {
            return (terms.new, terms.new);
        };
        let sums = &mut sums[..range.len()];
        kernels.add(sums, new, old, decay);
        let beside = terms.beside;
        if let Next::Rounded(next) = &mut self.next {
            next.write_moment(kernels, range, beside);
            next.write_block(kernels, range, (new, old), (sums, kernels.peak(sums)), beside);
        } else {
            self.next.write_beside(kernels, range, (new, memory.old(range)), beside);
            self.next.write_sums(kernels, range, sums);
        }
        (new, sums)
    }

    /// The same of a block that was read and written before.
    pub fn pair_again<'s>(&'s self, block: Block<'s>) -> (&'s [f32], &'s [f32]) {
        match &self.next {
            Next::Sums { sums, .. } => {
                let written = &sums[block.range.clone()];
                (self.tensor.novelty(block), written)
            }
            _ => self.tensor().pair(block),
        }
    }

    /// Reads a block, to be written once it is known what is sent; the sums, in scratch memory.
    #[inline(always)]
    pub fn take<'s>(&mut self, block: Block<'s>) -> &'s mut [f32] {
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let sums = &mut sums[..range.len()];
        let Tensor { gradient, memory: past } = self.tensor;
        if let Past::None = past {
            gradient.copy(kernels, range.clone(), sums);
            return sums;
        }
        let terms = past.terms(gradient, kernels, range, places, false);
        if let Some((old, decay)) = terms.old {
            kernels.add(sums, terms.new, old, decay);
        }
        self.next.write_moment(kernels, range, terms.beside);
        self.next.note_sums(range, sums);
        sums
    }

    /// Writes what the memory becomes of a block that was taken, of which `left` was not sent.
    #[inline(always)]
    pub fn keep(&mut self, kernels: &Streaming<'_>, range: &Range<usize>, left: &mut [f32]) {
        if let (Next::Rounded(next), Past::Rounded { residual, .. }) =
            (&self.next, self.tensor.memory)
        {
            next.filter(&residual[range.clone()], left);
        }
        self.next.write_left(kernels, range, self.tensor.memory.old(range), left);
    }
}

impl<'a> From<Tensor<'a>> for Update<'a> {
    /// Reads and writes nothing.
    fn from(tensor: Tensor<'a>) -> Self {
        Self { tensor, next: Next::None }
    }
}

impl Split for Update<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let later = self.tensor.range(middle..self.tensor.len());
        let tensor = self.tensor.range(0..middle);
        let (next, late) = self.next.split_at(middle);
        (Self { tensor, next }, Self { tensor: later, next: late })
    }
}
