//! A read that finds the largest entries of each chunk.
//!
//! Where the entries of a chunk depend on nothing outside of it, they can be found while its sums are
//! in the first cache. That pays where the sums are not what is written, so that a second read would
//! have to add everything up again. Where they are, one loop that adds and writes, and a second read,
//! are faster: between one kernel and the next over a block no load is under way.

use super::bins::{tile, unit};
use super::parallel::Share;
use super::scanner::collect;
use super::{Block, Candidates, Local, Scanner, Tensor, Totals, Update, Worker, search, steps};
use crate::allocate;
use crate::simd::{BLOCK, Kernels};

/// How many entries of so many in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Elements of a chunk; the last one of a tensor may be shorter.
    pub chunk: usize,
    /// The largest so many of each; no zeros.
    pub k: usize,
}

/// What the largest chunk is that is searched during the read: beyond it, sums leave the cache before.
pub(crate) const LONGEST_CHUNK: usize = 16 * BLOCK;

/// Elements searched together, if chunks are smaller: what keeps calls few and stays in the cache.
const TOGETHER: usize = 8192;

impl Chunks {
    /// Adds the entries of whole chunks `x` from position `at` of the tensor on to the candidates.
    /// `bits` is memory to use again.
    pub fn search(
        self,
        kernels: &Kernels,
        x: &[f32],
        at: usize,
        bits: &mut Vec<u32>,
        candidates: &mut Candidates,
    ) {
        let Self { chunk, k } = self;
        if k == 1 {
            let Some((indices, values)) = candidates.spare(x.len().div_ceil(chunk)) else { return };
            let count = kernels.leaders(x, chunk, at as u32, indices, values);
            candidates.admit(count);
            return;
        }
        for (i, x) in x.chunks(chunk).enumerate() {
            search::largest(kernels, x, k, (at + i * chunk) as u32, bits, candidates);
        }
    }
}

impl Scanner {
    /// Finds them during the read.
    pub(super) fn read_chunks(&mut self, update: Update<'_>, chunks: Chunks) -> Totals {
        let step = tile(chunks.chunk);
        let workers = self.parallel(update.len(), unit(chunks.chunk), update, |share| {
            let Share { kernels, range: all, what: mut update, worker } = share;
            worker.clear();
            for range in steps(0..all.len(), step) {
                let Worker { peak, candidates, local, scratch, .. } = &mut *worker;
                let at = all.start + range.start;
                let sums = if range.len() <= BLOCK {
                    update.pair(Block::new(kernels, range, scratch)).1
                } else {
                    if !candidates.admit_memory(allocate::resize(&mut local.floats, range.len())) {
                        return;
                    }
                    let parts = steps(range, BLOCK).zip(local.floats.chunks_mut(BLOCK));
                    for (range, part) in parts {
                        let block = Block::new(kernels, range, scratch);
                        part.copy_from_slice(update.pair(block).1);
                    }
                    &local.floats
                };
                *peak = kernels.peak(sums).max(*peak);
                chunks.search(kernels, sums, at, &mut local.bits, candidates);
            }
        });
        collect(workers, Some(usize::MAX))
    }

    /// Finds the same in a tensor that was read before.
    pub fn search_chunks(&mut self, tensor: Tensor<'_>, chunks: Chunks) {
        let Chunks { chunk, k } = chunks;
        let step = if k == 1 { chunk * (TOGETHER / chunk).max(1) } else { chunk };
        self.find(tensor.len(), chunk, |share| {
            let Share { kernels, range, worker, .. } = share;
            let Worker { candidates, local: Local { floats, bits, .. }, scratch, .. } = worker;
            for range in steps(range, step) {
                let at = range.start;
                match tensor.run(kernels, range, floats, scratch) {
                    Ok(x) => chunks.search(kernels, x, at, bits, candidates),
                    Err(error) => return candidates.fail(error),
                }
            }
        });
    }
}
