//! Sums over groups of a tensor, gathered before anything is coded.

use crate::pool;
use crate::quantize::{Basis, Summary};
use crate::scan::{CHUNK, STEP, Scanner, Scratch, Source, View};
use crate::simd::Kernels;
use crate::simd::summary::Lanes;
use crate::{Result, room};

/// The sums of each chunk of each group, in order. To be used again: no call allocates once it has
/// grown.
#[derive(Debug, Default)]
pub(super) struct Totals {
    chunks: Vec<Summary>,
    /// Chunks of a group; the last group may have fewer.
    per_group: usize,
}

impl Totals {
    /// Reads a tensor whose groups have `group` elements each, for scales that follow from `basis`.
    pub fn gather(
        &mut self,
        view: View<'_>,
        group: usize,
        basis: Basis,
        scanner: &Scanner,
    ) -> Result<()> {
        let numel = view.len();
        self.per_group = group.div_ceil(CHUNK);
        let last = numel % group;
        let chunks = numel / group * self.per_group + last.div_ceil(CHUNK);
        self.chunks.clear();
        room::reserve(&mut self.chunks, chunks)?;
        self.chunks.resize(chunks, Summary::default());
        let job = Job { kernels: scanner.kernels, view, group, per_group: self.per_group, basis };
        let width = scanner.width(numel);
        match pool::acquire(width) {
            Some(pool) => pool.install(|| job.spread(0, &mut self.chunks, width)),
            None => job.spread(0, &mut self.chunks, 1),
        }
        Ok(())
    }

    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        size_of::<Summary>() * self.chunks.capacity()
    }

    /// The sums of each group.
    pub fn of_groups(&self) -> impl Iterator<Item = Summary> {
        self.chunks.chunks(self.per_group.max(1)).map(|chunks| {
            let mut total = Summary::default();
            for chunk in chunks {
                total.add(chunk);
            }
            total
        })
    }

    /// Bits of the largest magnitude.
    pub fn peak(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.peak).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy)]
struct Job<'a> {
    kernels: &'static Kernels,
    view: View<'a>,
    group: usize,
    per_group: usize,
    basis: Basis,
}

impl Job<'_> {
    /// Gives each thread an equal number of chunks; `first` is the number of the first of these.
    fn spread(self, first: usize, chunks: &mut [Summary], width: usize) {
        if width < 2 || chunks.len() < 2 {
            let mut scratch = Scratch::default();
            for (i, chunk) in chunks.iter_mut().enumerate() {
                let (group, part) = ((first + i) / self.per_group, (first + i) % self.per_group);
                let at = group * self.group + part * CHUNK;
                let end = ((group + 1) * self.group).min(self.view.len());
                let len = CHUNK.min(end - at);
                *chunk = summarize(self.kernels, &self.view, self.basis, at, len, &mut scratch);
            }
            return;
        }
        let (half, middle) = (width / 2, chunks.len() * (width / 2) / width);
        let (left, right) = chunks.split_at_mut(middle);
        rayon::join(
            || self.spread(first, left, half),
            || self.spread(first + middle, right, width - half),
        );
    }
}

/// What a basis takes of up to a chunk of a tensor.
pub(super) fn summarize<S: Source>(
    kernels: &Kernels,
    source: &S,
    basis: Basis,
    at: usize,
    len: usize,
    scratch: &mut Scratch,
) -> Summary {
    let mut lanes = Lanes::default();
    for from in (at..at + len).step_by(STEP) {
        let size = STEP.min(at + len - from);
        source.fetch(kernels, from + STEP);
        let block = source.block(kernels, from, size, scratch);
        match basis {
            Basis::None => {}
            Basis::Peak => lanes.peak = lanes.peak.max(kernels.peak(block)),
            Basis::Sides => kernels.sides(block, &mut lanes),
            Basis::Squares => kernels.squares(block, &mut lanes),
            Basis::Sums | Basis::Values => kernels.summary(block, &mut lanes),
        }
    }
    lanes.into()
}
