//! A block of a tensor: which elements, and what it takes to work on them.

use std::ops::Range;

use crate::simd::BLOCK;
use crate::simd::stream::Streaming;

/// Up to [`BLOCK`] elements of a tensor, and what to work on them with.
pub(crate) struct Block<'s> {
    pub kernels: &'s Streaming<'s>,
    /// Which elements, counted from where the share of a thread begins.
    pub range: Range<usize>,
    pub scratch: &'s mut Scratch,
}

impl<'s> Block<'s> {
    pub fn new(kernels: &'s Streaming<'s>, range: Range<usize>, scratch: &'s mut Scratch) -> Self {
        Self { kernels, range, scratch }
    }

    /// The same, for one more use.
    pub fn again(&mut self) -> Block<'_> {
        Block { range: self.range.clone(), scratch: self.scratch, ..*self }
    }
}

/// Memory for all that a block is made of and comes to.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) places: Places,
    /// Gradient and memory put together.
    pub(super) sums: [f32; BLOCK],
}

/// Memory for what the sums of a block are made of.
#[derive(Debug)]
pub(super) struct Places {
    /// The gradient, where it is not in memory as float32.
    pub gradient: [f32; BLOCK],
    /// What a memory was, where it is not in memory as float32.
    pub old: [f32; BLOCK],
    /// What a memory has in the place of the gradient.
    pub step: [f32; BLOCK],
    /// What a memory becomes besides the sums.
    pub beside: [f32; BLOCK],
}

impl Default for Scratch {
    fn default() -> Self {
        let sums = [0.0; BLOCK];
        Self { places: Places { gradient: sums, old: sums, step: sums, beside: sums }, sums }
    }
}

/// The range in steps of that many, the last of which may be shorter.
pub(crate) fn steps(
    range: Range<usize>,
    step: usize,
) -> impl Iterator<Item = Range<usize>> + Clone {
    let end = range.end;
    range.step_by(step).map(move |at| at..end.min(at + step))
}
