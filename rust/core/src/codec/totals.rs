//! Sums over groups of a tensor, gathered before anything is coded.

use crate::quantize::{Basis, Summary};
use crate::scan::{Block, CHUNK, STEP, Scanner, Share, Split, Tensor, steps};
use crate::simd::summary::Lanes;
use crate::{Result, allocate};

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
        tensor: Tensor<'_>,
        group: usize,
        basis: Basis,
        scanner: &mut Scanner,
    ) -> Result<()> {
        let (numel, per_group) = (tensor.len(), group.div_ceil(CHUNK));
        self.per_group = per_group;
        let last = numel % group;
        let chunks = numel / group * per_group + last.div_ceil(CHUNK);
        self.chunks.clear();
        allocate::reserve(&mut self.chunks, chunks)?;
        self.chunks.resize(chunks, Summary::default());
        // As many elements as if every chunk were whole.
        let slots = Slots(&mut self.chunks);
        scanner.parallel(chunks * CHUNK, CHUNK, slots, |share| {
            let Share { kernels, range, what: Slots(chunks), worker } = share;
            let first = range.start / CHUNK;
            for (i, chunk) in chunks.iter_mut().enumerate() {
                let (whole, part) = ((first + i) / per_group, (first + i) % per_group);
                let at = whole * group + part * CHUNK;
                let end = numel.min((whole + 1) * group).min(at + CHUNK);
                *chunk =
                    summarize(&tensor, basis, Block::new(kernels, at..end, &mut worker.scratch));
            }
        });
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

/// Places for the sums of chunks.
struct Slots<'a>(&'a mut [Summary]);

impl Split for Slots<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let (head, rest) = self.0.split_at_mut(middle / CHUNK);
        (Self(head), Self(rest))
    }
}

/// What a basis takes of up to a chunk of a tensor.
pub(super) fn summarize(tensor: &Tensor<'_>, basis: Basis, chunk: Block<'_>) -> Summary {
    let Block { kernels, range, scratch } = chunk;
    let mut lanes = Lanes::default();
    for range in steps(range, STEP) {
        tensor.fetch(kernels, range.start + STEP);
        let sums = tensor.sums(Block::new(kernels, range, scratch));
        match basis {
            Basis::None => {}
            Basis::Peak => lanes.peak = lanes.peak.max(kernels.peak(sums)),
            Basis::Sides => kernels.sides(sums, &mut lanes),
            Basis::Squares => kernels.squares(sums, &mut lanes),
            Basis::Sums | Basis::Values => kernels.summary(sums, &mut lanes),
        }
    }
    lanes.into()
}
