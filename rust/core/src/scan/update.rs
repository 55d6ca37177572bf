//! A tensor that is read, and what its memory becomes meanwhile.

use std::ops::Range;

use super::block::{Block, Places, Scratch};
use super::next::Next;
use super::parallel::Split;
use super::tensor::{Past, Tensor, Terms};
use crate::Input;
use crate::simd::Kernels;
use crate::simd::adam::Rule;
use crate::simd::stream::Streaming;
use crate::simd::sweep::{Addend, Feedback, Found, Gather, Moment, Rounded};

/// A tensor, and where that is written which its memory becomes.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    /// Without the residual where [`Next::InPlace`] has that.
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
        Tensor { memory: self.past(), ..self.tensor }
    }

    #[inline(always)]
    fn past(&self) -> Past<'_> {
        self.next.past().unwrap_or(self.tensor.memory)
    }

    /// As [`Tensor::fetch`].
    #[inline(always)]
    pub fn fetch(&self, kernels: &Kernels, at: usize) {
        self.past().fetch(self.tensor.gradient, kernels, at);
    }

    /// Whether anything is written.
    pub fn writes(&self) -> bool {
        !matches!(self.next, Next::None)
    }

    /// Whether the sums are in memory once all was read.
    pub(super) fn leaves_sums(&self) -> bool {
        match self.next {
            Next::Sums { .. } | Next::InPlace { .. } => true,
            Next::Filtered { .. } | Next::Rounded(_) => false,
            Next::None => matches!(self.tensor.memory, Past::None),
        }
    }

    /// Has sums that are written, and read again right after it, stay in the caches.
    pub(super) fn keep_cached(&mut self) {
        self.next.keep_cached();
    }

    /// Reads a block, writes what its memory becomes, and gathers from the sums.
    pub fn sweep(&mut self, block: Block<'_>, gather: Gather<'_>) -> Found {
        if let Past::Adam { rule, .. } = self.past() {
            return self.sweep_steps(rule, block, gather);
        }
        if let Past::Rounded { decay, .. } = self.past() {
            return self.sweep_rounded(decay, block, gather);
        }
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let Tensor { gradient, memory } = self.tensor;
        let input = gradient.0.range(range.clone());
        // What is written beside the sums depends on the gradient, too, which is read once.
        let once = self.next.filters();
        let (new, decay) = match self.past() {
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
        // In place they are where the sums go.
        let old = Some(memory.old(range));
        let (residual, sum, streams) = match &mut self.next {
            Next::Sums { sums, streams, .. } => (old, &mut sums[range.clone()], *streams),
            Next::InPlace { residual, .. } => (None, &mut residual[range.clone()], false),
            _ => (old, &mut sums[..range.len()], false),
        };
        let feedback = Feedback { residual, decay, sum, streams: streams.then_some(kernels) };
        kernels.sweep(new, Addend::Residual(feedback), gather)
    }

    /// The same of steps that a loop makes of gradients, as it adds them.
    fn sweep_steps(&mut self, rule: Rule, block: Block<'_>, gather: Gather<'_>) -> Found {
        let Block { kernels, range, scratch } = block;
        let Scratch { places, sums: unused } = scratch;
        let spare = &mut places.beside;
        let x = self.tensor.gradient.0.range(range.clone());
        let (second, residual) = match self.tensor.memory {
            Past::Adam { second, residual, .. } => {
                (Some(&second[range.clone()]), Some(&residual[range.clone()]))
            }
            // In place they are where the next ones go.
            _ => (None, None),
        };
        let (next, sum, streams) = match &mut self.next {
            Next::Sums { sums, beside, streams } => {
                (&mut beside[range.clone()], &mut sums[range], *streams)
            }
            Next::InPlace { residual, beside, .. } => {
                (&mut beside[range.clone()], &mut residual[range], false)
            }
            _ => (&mut spare[..range.len()], &mut unused[..range.len()], false),
        };
        let moment = Moment { second, next, rule };
        let streams = streams.then_some(kernels);
        let feedback = Feedback { residual, decay: 1.0, sum, streams };
        kernels.sweep(x, Addend::Steps(moment, feedback), gather)
    }

    /// The same of a memory in bfloat16, which a loop widens and rounds as it adds it.
    fn sweep_rounded(&mut self, decay: f32, block: Block<'_>, gather: Gather<'_>) -> Found {
        let Block { kernels, range, scratch } = block;
        let Scratch { places: Places { beside, .. }, sums } = scratch;
        let (sums, beside) = (&mut sums[..range.len()], &mut beside[..range.len()]);
        let input = self.tensor.gradient.0.range(range.clone());
        let residual = match self.tensor.memory {
            Past::Rounded { residual, .. } => Some(&residual[range.clone()]),
            // In place it is where the next one goes.
            _ => None,
        };
        let keep = match &mut self.next {
            Next::Rounded(next) => Some(next.keep(kernels, &range, beside)),
            _ => None,
        };
        let memory = Rounded { residual, decay, sum: &mut *sums, keep };
        let found = kernels.sweep(input, Addend::Rounded(memory), gather);
        if let Next::Rounded(next) = &mut self.next {
            next.tame(kernels, &range, (sums, found.peak), beside);
        }
        found
    }

    /// Widens a block of a memory in bfloat16; the factor that it has in the sums.
    fn widen(&self, kernels: &Kernels, range: &Range<usize>, old: &mut [f32]) -> f32 {
        let Past::Rounded { residual, decay } = self.past() else { return 1.0 };
        kernels.widen_bf16(&residual[range.clone()], old);
        decay
    }

    /// The sums of the block that was swept last, if they were not streamed away.
    pub fn swept<'s>(&'s self, block: Block<'s>) -> &'s [f32] {
        let range = block.range.clone();
        match (&self.next, self.tensor.memory) {
            (Next::Rounded(_), _) => &block.scratch.sums[..range.len()],
            (Next::Sums { sums, .. }, _) => &sums[range],
            (Next::InPlace { residual, .. }, _) => &residual[range],
            (_, Past::None) => self.tensor.sums(block),
            _ => &block.scratch.sums[..range.len()],
        }
    }

    /// Reads a block and writes what its memory becomes; what is new in the sums, and the sums.
    pub fn pair<'s>(&mut self, block: Block<'s>) -> (&'s [f32], &'s [f32])
    where
        'a: 's,
    {
        if let Past::Rounded { .. } = self.past() {
            return self.pair_rounded(block);
        }
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let once = self.next.filters();
        let terms = self.past().terms(self.tensor.gradient, kernels, range, places, once);
        let (new, Some((old, decay))) = (terms.new, terms.old) else {
            return (terms.new, terms.new);
        };
        let sums = &mut sums[..range.len()];
        kernels.add(sums, new, old, decay);
        let beside = terms.beside;
        self.next.write_beside(kernels, range, (new, self.tensor.memory.old(range)), beside);
        self.next.write_sums(kernels, range, sums);
        (new, sums)
    }

    /// The same of a memory in bfloat16.
    fn pair_rounded<'s>(&mut self, block: Block<'s>) -> (&'s [f32], &'s [f32])
    where
        'a: 's,
    {
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let Places { gradient: widened, old, beside, .. } = places;
        let (old, beside) = (&mut old[..range.len()], &mut beside[..range.len()]);
        let (gradient, sums) = (self.tensor.gradient, &mut sums[..range.len()]);
        let decay = self.widen(kernels, range, old);
        let new = if self.next.filters() {
            gradient.float32_once(kernels, range.clone(), widened)
        } else {
            gradient.float32(kernels, range.clone(), widened)
        };
        kernels.add(sums, new, old, decay);
        let peak = kernels.peak(sums);
        if let Next::Rounded(next) = &mut self.next {
            next.write_block(kernels, range, (new, old), (sums, peak), beside);
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
        let (gradient, past) = (self.tensor.gradient, self.past());
        if let Past::None = past {
            gradient.copy(kernels, range.clone(), sums);
            return sums;
        }
        let terms = past.terms(gradient, kernels, range, places, false);
        if let Some((old, decay)) = terms.old {
            kernels.add(sums, terms.new, old, decay);
        }
        self.next.write_moment(kernels, range, terms.beside);
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
