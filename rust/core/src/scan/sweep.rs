//! A read that gathers sums, and the entries above a bound.
//!
//! Sums are kept for each chunk and added in the order of chunks, entries above the bound are kept in
//! the order of positions: neither depends on how many threads took part.

use std::ops::Range;

use super::parallel::Share;
use super::scanner::collect;
use super::{Block, CHUNK, Entries, Request, Scanner, Tensor, Totals, Update, steps, sums};
use crate::allocate;
use crate::fit::Moments;
use crate::simd::sweep::Gather;
use crate::simd::{BLOCK, log_sum, moments, total};

impl Scanner {
    /// Reads a tensor once and writes nothing.
    pub fn scan(&mut self, tensor: Tensor<'_>, request: &Request) -> Totals {
        self.read(tensor.into(), request)
    }

    /// Reads a tensor once, and writes what its memory becomes of entries that are not sent.
    pub fn read(&mut self, mut update: Update<'_>, request: &Request) -> Totals {
        if request.reads_back() {
            update.keep_cached();
        }
        match request.entries {
            Entries::Bins(bins) => self.read_bins(update, bins),
            Entries::Chunks(chunks) if !update.leaves_sums() => self.read_chunks(update, chunks),
            _ => self.sweep(update, request),
        }
    }

    fn sweep(&mut self, update: Update<'_>, request: &Request) -> Totals {
        let (above, cap) = match request.entries {
            Entries::Above { bound, cap } => (Some(bound), cap),
            _ => (None, usize::MAX),
        };
        let workers = self.parallel(update.len(), CHUNK, update, |mut share| {
            let (numel, worker) = (share.range.len(), &mut *share.worker);
            worker.peak = 0;
            worker.sums.clear();
            worker.complete = true;
            if above.is_some() {
                worker.candidates.restart(cap, numel);
            }
            let chunks = if request.location.is_some() { numel.div_ceil(CHUNK) } else { 0 };
            worker.candidates.admit_memory(allocate::reserve(&mut worker.sums, chunks));
            for chunk in steps(0..numel, CHUNK) {
                sweep_chunk(&mut share, chunk, request, above, cap);
            }
        });
        collect(workers, above.map(|_| cap))
    }
}

fn sweep_chunk(
    share: &mut Share<'_, Update<'_>>,
    chunk: Range<usize>,
    request: &Request,
    above: Option<f32>,
    cap: usize,
) {
    let Share { kernels, range: all, what: update, worker } = share;
    let mut lanes = moments::Lanes::default();
    let mut logs = log_sum::Lanes::default();
    let mut signed = total::Lanes::default();
    for range in steps(chunk.clone(), BLOCK) {
        let Some((indices, values)) = worker.candidates.spare(range.len()) else {
            // The encode will fail: what is left unread does not matter.
            worker.complete = false;
            return;
        };
        let bound = above.filter(|_| worker.complete).unwrap_or(f32::INFINITY);
        let base = (all.start + range.start) as u32;
        let moments = request.location.map(|location| (location, &mut lanes));
        let gather = Gather { moments, bound, base, indices, values };
        let mut block = Block::new(kernels, range, &mut worker.scratch);
        let found = update.sweep(block.again(), gather);
        if request.logs {
            kernels.log_sum(update.swept(block.again()), &mut logs);
        }
        if request.signed {
            kernels.total(update.swept(block.again()), &mut signed);
        }
        worker.peak = worker.peak.max(found.peak);
        worker.candidates.admit(found.count);
        worker.complete &= worker.candidates.len() <= cap;
    }
    if request.location.is_some() {
        let sum_ln = if request.logs { logs.sum_ln() } else { 0.0 };
        let moments = sums::of_lanes(&lanes);
        let zeros = chunk.len() as u64 - moments.count;
        worker.sums.push(Moments { zeros, sum_ln, signed: signed.sum(), ..moments });
    }
}
