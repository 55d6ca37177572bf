//! What there is to encode: a gradient, and what a memory adds to it.

use std::ops::Range;

use half::bf16;

use super::block::{Block, Places, Scratch, steps};
use super::field::{Field, STEP, fetch};
use crate::simd::{BLOCK, Kernels, adam, momentum, normal_or_zero};
use crate::{Input, Result, allocate};

/// The tensor that entries are selected of: the sums of a gradient and what is kept of those before.
///
/// The sums are in memory where nothing is kept. Where something is, they are added up in each look,
/// no longer than a block is worked on, and those below the smallest normal number are zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor<'a> {
    pub gradient: Field<'a>,
    pub memory: Past<'a>,
}

/// What is kept of the gradients before, and how it is put together with a new one.
///
/// A memory that puts them together in another way is a variant here, with an arm in
/// each match below; [`Past::terms`] is the one that adds up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Past<'a> {
    /// Nothing: the sums are the gradient.
    None,
    /// The sums are `gradient + decay * residual`.
    Residual { residual: &'a [f32], decay: f32 },
    /// The same of a residual in bfloat16.
    Rounded { residual: &'a [bf16], decay: f32 },
    /// The gradient moves a momentum, to which a velocity is added, times a factor.
    Momentum { momentum: &'a [f32], velocity: &'a [f32], factor: f32, rule: momentum::Rule },
    /// The gradient moves a second moment, and the step that follows is added to a residual.
    Adam { second: &'a [f32], residual: &'a [f32], rule: adam::Rule },
    /// The same of both in bfloat16.
    RoundedAdam { second: &'a [bf16], residual: &'a [bf16], rule: adam::Rule },
}

/// What the sums of a block are made of.
pub(super) struct Terms<'s, 'o> {
    /// What is new in them: the gradient, or the step that a memory makes of it.
    pub new: &'s [f32],
    /// What that is added to, and the factor it has; none where the sums are what is new.
    pub old: Option<(&'o [f32], f32)>,
    /// What the memory becomes besides the sums, if it does; a place to use after that.
    pub beside: &'s mut [f32],
}

impl<'a> Past<'a> {
    fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::None => Self::None,
            Self::Residual { residual, decay } => {
                Self::Residual { residual: &residual[range], decay }
            }
            Self::Rounded { residual, decay } => {
                Self::Rounded { residual: &residual[range], decay }
            }
            Self::Momentum { momentum, velocity, factor, rule } => {
                let (momentum, velocity) = (&momentum[range.clone()], &velocity[range]);
                Self::Momentum { momentum, velocity, factor, rule }
            }
            Self::Adam { second, residual, rule } => {
                let (second, residual) = (&second[range.clone()], &residual[range]);
                Self::Adam { second, residual, rule }
            }
            Self::RoundedAdam { second, residual, rule } => {
                let (second, residual) = (&second[range.clone()], &residual[range]);
                Self::RoundedAdam { second, residual, rule }
            }
        }
    }

    /// What the sums of a block are made of with this gradient: of a copy of it, if it has to be read
    /// `once`.
    // Inlined into what is called for every quarter of a block.
    #[inline(always)]
    pub(super) fn terms<'s, 'o>(
        self,
        gradient: Field<'s>,
        kernels: &Kernels,
        range: &Range<usize>,
        places: &'s mut Places,
        once: bool,
    ) -> Terms<'s, 'o>
    where
        'a: 'o,
        's: 'o,
    {
        let Places { gradient: widened, old, step, beside } = places;
        let beside = &mut beside[..range.len()];
        let new = if once {
            gradient.float32_once(kernels, range.clone(), widened)
        } else {
            gradient.float32(kernels, range.clone(), widened)
        };
        match self {
            Self::None => Terms { new, old: None, beside },
            Self::Residual { decay, .. } => {
                Terms { new, old: Some((self.old(range), decay)), beside }
            }
            Self::Rounded { residual, decay } => {
                let old = &mut old[..range.len()];
                kernels.widen_bf16(&residual[range.clone()], old);
                Terms { new, old: Some((old, decay)), beside }
            }
            Self::Momentum { momentum, factor, rule, .. } => {
                let step = &mut step[..range.len()];
                kernels.momentum(beside, step, new, &momentum[range.clone()], rule);
                Terms { new: step, old: Some((self.old(range), factor)), beside }
            }
            Self::Adam { second, rule, .. } => {
                let step = &mut step[..range.len()];
                kernels.adam(beside, step, new, &second[range.clone()], rule);
                Terms { new: step, old: Some((self.old(range), 1.0)), beside }
            }
            Self::RoundedAdam { second, residual, rule } => {
                let (step, old) = (&mut step[..range.len()], &mut old[..range.len()]);
                kernels.widen_bf16(&second[range.clone()], old);
                kernels.adam(beside, step, new, old, rule);
                kernels.widen_bf16(&residual[range.clone()], old);
                Terms { new: step, old: Some((old, 1.0)), beside }
            }
        }
    }

    /// Has what the next [`STEP`] sums from position `at` are made of brought to the caches.
    #[inline(always)]
    pub(super) fn fetch(self, gradient: Field<'_>, kernels: &Kernels, at: usize) {
        match self {
            Self::None => gradient.fetch(kernels, at),
            Self::Rounded { residual, .. } => {
                gradient.fetch(kernels, at);
                let rest = residual.get(at..).unwrap_or_default();
                kernels.fetch(bytemuck::cast_slice(&rest[..STEP.min(rest.len())]));
            }
            Self::Residual { residual, .. } => {
                gradient.fetch(kernels, at);
                fetch(kernels, residual, at);
            }
            // More lines than are waited for at a time.
            Self::Momentum { .. } | Self::Adam { .. } | Self::RoundedAdam { .. } => {}
        }
    }

    /// What the new is added to in a block, where that is in memory as float32.
    pub(super) fn old(self, range: &Range<usize>) -> &'a [f32] {
        match self {
            Self::None | Self::Rounded { .. } | Self::RoundedAdam { .. } => &[],
            Self::Residual { residual: old, .. }
            | Self::Momentum { velocity: old, .. }
            | Self::Adam { residual: old, .. } => &old[range.clone()],
        }
    }
}

impl<'a> Tensor<'a> {
    /// A tensor of float32 elements.
    pub fn plain(x: &'a [f32]) -> Self {
        Field(Input::F32(x)).into()
    }

    pub fn len(&self) -> usize {
        self.gradient.len()
    }

    /// The elements in a range, as a tensor of their own.
    pub fn range(self, range: Range<usize>) -> Self {
        let gradient = Field(self.gradient.0.range(range.clone()));
        Self { gradient, memory: self.memory.range(range) }
    }

    /// The element at a position.
    pub fn at(&self, i: usize) -> f32 {
        let gradient = self.gradient.at(i);
        normal_or_zero(match self.memory {
            Past::None => return gradient,
            Past::Residual { residual, decay } => {
                let kept = decay * residual[i];
                gradient + kept
            }
            Past::Rounded { residual, decay } => {
                let kept = decay * residual[i].to_f32();
                gradient + kept
            }
            Past::Momentum { momentum, velocity, factor, rule } => {
                let (_, step) = rule.of(gradient, momentum[i]);
                step + factor * velocity[i]
            }
            Past::Adam { second, residual, rule } => {
                let (_, step) = rule.of(gradient, second[i]);
                step + residual[i]
            }
            Past::RoundedAdam { second, residual, rule } => {
                let (_, step) = rule.of(gradient, second[i].to_f32());
                step + residual[i].to_f32()
            }
        })
    }

    /// The elements, if they are in memory as float32.
    #[inline(always)]
    pub fn as_slice(&self) -> Option<&'a [f32]> {
        match (self.gradient.0, self.memory) {
            (Input::F32(x), Past::None) => Some(x),
            _ => None,
        }
    }

    /// The elements at these positions.
    pub fn gather(&self, positions: &[u32], out: &mut [f32]) {
        let out = out.iter_mut().zip(positions);
        match self.as_slice() {
            Some(x) => out.for_each(|(value, &position)| *value = x[position as usize]),
            None => out.for_each(|(value, &position)| *value = self.at(position as usize)),
        }
    }

    /// What is new in the sums of a block, and the sums.
    pub fn pair<'s>(&self, block: Block<'s>) -> (&'s [f32], &'s [f32])
    where
        'a: 's,
    {
        let Block { kernels, range, scratch } = block;
        let (range, Scratch { places, sums }) = (&range, scratch);
        let terms = self.memory.terms(self.gradient, kernels, range, places, false);
        let Some((old, decay)) = terms.old else { return (terms.new, terms.new) };
        let sums = &mut sums[..range.len()];
        kernels.add(sums, terms.new, old, decay);
        (terms.new, sums)
    }

    /// What is new in the sums of a block.
    pub(super) fn novelty<'s>(&self, block: Block<'s>) -> &'s [f32]
    where
        'a: 's,
    {
        let Block { kernels, range, scratch } = block;
        self.memory.terms(self.gradient, kernels, &range, &mut scratch.places, false).new
    }

    /// The sums of a block.
    #[inline(always)]
    pub fn sums<'s>(&self, block: Block<'s>) -> &'s [f32]
    where
        'a: 's,
    {
        match self.as_slice() {
            Some(x) => &x[block.range],
            None => self.pair(block).1,
        }
    }

    /// Copies the sums of any number of elements from position `at`.
    pub fn copy(&self, kernels: &Kernels, at: usize, out: &mut [f32], scratch: &mut Scratch) {
        for range in steps(at..at + out.len(), BLOCK) {
            let out = &mut out[range.start - at..range.end - at];
            if let Past::None = self.memory {
                self.gradient.copy(kernels, range, out);
                continue;
            }
            let places = &mut scratch.places;
            let terms = self.memory.terms(self.gradient, kernels, &range, places, false);
            if let Some((old, decay)) = terms.old {
                kernels.add(out, terms.new, old, decay);
            }
        }
    }

    /// The elements in a range, in `buffer` if they are not in memory as float32. An error where there
    /// is no memory for that.
    pub fn run<'s>(
        &self,
        kernels: &Kernels,
        range: Range<usize>,
        buffer: &'s mut Vec<f32>,
        scratch: &mut Scratch,
    ) -> Result<&'s [f32]>
    where
        'a: 's,
    {
        if let Some(x) = self.as_slice() {
            return Ok(&x[range]);
        }
        allocate::resize(buffer, range.len())?;
        self.copy(kernels, range.start, buffer, scratch);
        Ok(buffer)
    }

    /// Visits all of it, block by block, with the position of each.
    pub fn for_each_block(&self, kernels: &Kernels, mut visit: impl FnMut(usize, &[f32])) {
        let mut scratch = Scratch::default();
        kernels.streaming(|kernels| {
            for range in steps(0..self.len(), BLOCK) {
                visit(range.start, self.sums(Block::new(kernels, range, &mut scratch)));
            }
        });
    }

    /// Has what the next [`STEP`] sums from position `at` are made of brought to the caches.
    pub fn fetch(&self, kernels: &Kernels, at: usize) {
        self.memory.fetch(self.gradient, kernels, at);
    }
}

impl<'a> From<Field<'a>> for Tensor<'a> {
    fn from(gradient: Field<'a>) -> Self {
        Self { gradient, memory: Past::None }
    }
}
