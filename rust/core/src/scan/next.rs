//! What is written of a memory while a tensor is read.

use std::ops::Range;

use half::bf16;

use super::parallel::Split;
use super::rounded::Rounded;
use crate::rng::Key;
use crate::simd::normal_or_zero;
use crate::simd::stream::Streaming;

/// What is written of a memory.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Nothing.
    None,
    /// The sums, and what the memory becomes besides if there is anything: a momentum.
    Sums { sums: &'a mut [f32], beside: &'a mut [f32], streams: bool },
    /// What a filter takes in of the gradient, added to what the memory was.
    Filtered { memory: &'a mut [f32], filter: Filter, streams: bool },
    /// What the memory was, to which what is sent is added, and a momentum beside it.
    Stays { memory: &'a mut [f32], beside: &'a mut [f32], streams: bool },
    /// What becomes of a memory in bfloat16.
    Rounded(Rounded<'a>),
}

/// A memory that takes in a part of each gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    pub beta: f32,
}

impl Filter {
    /// Takes in all of it: what comes of it are the sums.
    pub const ALL: Self = Self { beta: 1.0 };

    /// Whether it does.
    #[allow(clippy::float_cmp, reason = "only exactly 1 takes in all")]
    pub fn is_all(self) -> bool {
        self.beta == 1.0
    }

    /// What becomes of an entry, if it was `old` and `left` of the sum was not sent.
    pub fn left(self, old: f32, left: f32) -> f32 {
        // By the general rule a negative zero would become a positive one.
        if self.is_all() {
            left
        } else {
            normal_or_zero((1.0 - self.beta) * old + self.beta * left)
        }
    }
}

/// Whether so many elements, those of a memory and what it becomes are beyond what common caches hold
/// together.
pub(crate) fn is_streamed(len: usize) -> bool {
    len >= 1 << 21
}

/// Writes a block, past the caches if asked to.
fn write(kernels: &Streaming<'_>, target: &mut [f32], block: &[f32], streams: bool) {
    if streams { kernels.stream(target, block) } else { target.copy_from_slice(block) }
}

impl<'a> Next<'a> {
    /// Writes the sums.
    pub fn sums(sums: &'a mut [f32], beside: &'a mut [f32]) -> Self {
        let streams = is_streamed(sums.len());
        Self::Sums { sums, beside, streams }
    }

    /// Writes what a filter takes in.
    pub fn filtered(memory: &'a mut [f32], filter: Filter) -> Self {
        let streams = is_streamed(memory.len());
        Self::Filtered { memory, filter, streams }
    }

    /// Writes what there was.
    pub fn stays(memory: &'a mut [f32], beside: &'a mut [f32]) -> Self {
        let streams = is_streamed(memory.len());
        Self::Stays { memory, beside, streams }
    }

    /// Writes what becomes of a memory in bfloat16, and of a moment beside it, which has a key of its
    /// own.
    pub fn rounded(
        memory: &'a mut [bf16],
        filter: Filter,
        key: Key,
        moment: Option<(&'a mut [bf16], Key)>,
    ) -> Self {
        Self::Rounded(Rounded::new(memory, filter, key, moment))
    }

    /// Has what is written, and read again right after it, stay in the caches.
    pub(super) fn keep_cached(&mut self) {
        if let Self::Sums { streams, .. } = self {
            *streams = false;
        }
    }

    /// Writes what becomes of a block of which nothing is sent and is not the sums: of what is new in
    /// them and old, and what is left `beside`, which is free then.
    pub(super) fn write_beside(
        &mut self,
        kernels: &Streaming<'_>,
        range: &Range<usize>,
        (new, old): (&[f32], &[f32]),
        beside: &mut [f32],
    ) {
        match self {
            Self::Filtered { memory, filter, streams } if *streams => {
                kernels.add(beside, old, new, filter.beta);
                kernels.stream(&mut memory[range.clone()], beside);
            }
            Self::Filtered { memory, filter, .. } => {
                kernels.add(&mut memory[range.clone()], old, new, filter.beta);
            }
            Self::Stays { memory, streams, .. } => {
                write(kernels, &mut memory[range.clone()], old, *streams);
                self.write_moment(kernels, range, beside);
            }
            _ => self.write_moment(kernels, range, beside),
        }
    }

    /// Whether what a memory becomes is made of the new in the sums, and not of these.
    pub(super) fn filters(&self) -> bool {
        match self {
            Self::Filtered { .. } => true,
            Self::Rounded(rounded) => rounded.filters(),
            Self::None | Self::Sums { .. } | Self::Stays { .. } => false,
        }
    }

    /// Writes what the memory becomes besides the sums, whatever is sent.
    #[inline(always)]
    pub(super) fn write_moment(
        &mut self,
        kernels: &Streaming<'_>,
        range: &Range<usize>,
        block: &mut [f32],
    ) {
        match self {
            Self::Sums { beside, streams, .. } | Self::Stays { beside, streams, .. }
                if !beside.is_empty() =>
            {
                write(kernels, &mut beside[range.clone()], block, *streams);
            }
            Self::Rounded(rounded) => rounded.write_moment(kernels, range, block),
            Self::None | Self::Sums { .. } | Self::Stays { .. } | Self::Filtered { .. } => {}
        }
    }

    /// Notes the sums of a block that is written once it is known what is left of them, where that takes
    /// these too.
    #[inline(always)]
    pub(super) fn note_sums(&mut self, range: &Range<usize>, block: &[f32]) {
        if let Self::Stays { memory, .. } = self {
            memory[range.clone()].copy_from_slice(block);
        }
    }

    /// Writes the sums of a block, if the memory becomes them.
    #[inline(always)]
    pub(super) fn write_sums(
        &mut self,
        kernels: &Streaming<'_>,
        range: &Range<usize>,
        block: &[f32],
    ) {
        if let Self::Sums { sums, streams, .. } = self {
            write(kernels, &mut sums[range.clone()], block, *streams);
        }
    }

    /// Writes what becomes of a block of which `left` was not sent.
    pub(super) fn write_left(
        &mut self,
        kernels: &Streaming<'_>,
        range: &Range<usize>,
        old: &[f32],
        left: &mut [f32],
    ) {
        if let Self::Rounded(rounded) = self {
            return rounded.write(kernels, range, left);
        }
        if let Self::Stays { memory, .. } = self {
            let noted = memory[range.clone()].iter_mut();
            return noted.zip(old).zip(&*left).for_each(|((sum, &old), &left)| {
                *sum = normal_or_zero(old + (*sum - left));
            });
        }
        let Self::Filtered { memory, filter, streams } = self else {
            return self.write_sums(kernels, range, left);
        };
        for (left, &old) in left.iter_mut().zip(old) {
            *left = filter.left(old, *left);
        }
        write(kernels, &mut memory[range.clone()], left, *streams);
    }
}

impl Split for Next<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::Sums { sums, beside, streams } => {
                let (sums, rest) = sums.split_at_mut(middle);
                let (beside, late) = beside.split_at_mut(middle.min(beside.len()));
                (
                    Self::Sums { sums, beside, streams },
                    Self::Sums { sums: rest, beside: late, streams },
                )
            }
            Self::Stays { memory, beside, streams } => {
                let (memory, rest) = memory.split_at_mut(middle);
                let (beside, late) = beside.split_at_mut(middle);
                (
                    Self::Stays { memory, beside, streams },
                    Self::Stays { memory: rest, beside: late, streams },
                )
            }
            Self::Filtered { memory, filter, streams } => {
                let (memory, rest) = memory.split_at_mut(middle);
                (
                    Self::Filtered { memory, filter, streams },
                    Self::Filtered { memory: rest, filter, streams },
                )
            }
            Self::Rounded(rounded) => {
                let (rounded, late) = rounded.split_at(middle);
                (Self::Rounded(rounded), Self::Rounded(late))
            }
        }
    }
}
