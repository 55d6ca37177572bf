//! A read that picks entries bin by bin.
//!
//! Two sweeps over a bin, while it is in the cache: one adds the memory and finds the largest
//! magnitude, the other picks. Bins are handled in blocks of as many whole ones as the first cache
//! holds; a bin larger than that is swept twice on its own.
//!
//! The maxima are summed in float64, bin after bin in each chunk, chunk after chunk.

use std::ops::Range;

use super::parallel::Share;
use super::scanner::collect;
use super::{Block, CHUNK, Scanner, Totals, Update, Worker, steps};
use crate::allocate;
use crate::fit::Moments;
use crate::simd::{BLOCK, Kernels, LANES};

/// What to pick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bins {
    /// Elements of a bin.
    pub bin: usize,
    /// How often the new gradient is added before an entry is compared with the largest of its bin.
    pub ahead: f32,
}

/// Elements worked on at a time of parts of so many: whole parts, and whole vectors of them if
/// possible.
pub(super) fn tile(part: usize) -> usize {
    let most = (BLOCK / part).max(1);
    let aligned = (1..=most).rev().find(|parts| (parts * part).is_multiple_of(LANES));
    aligned.unwrap_or(most) * part
}

/// As many tiles as are never shared between threads.
pub(super) fn unit(part: usize) -> usize {
    tile(part) * (CHUNK / tile(part)).max(1)
}

impl Bins {
    /// Whether sums are read again from where they were written down.
    pub(super) fn reads_back(self) -> bool {
        self.bin > BLOCK
    }
}

impl Scanner {
    /// The candidates are what was picked, and the sum of the moments is that of the maxima.
    pub(super) fn read_bins(&mut self, update: Update<'_>, bins: Bins) -> Totals {
        let work = |share: Share<'_, Update<'_>>| Reader::new(bins).read(share);
        let workers = self.parallel(update.len(), unit(bins.bin), update, work);
        collect(workers, Some(usize::MAX))
    }
}

/// What a thread picks with.
struct Reader {
    bins: Bins,
    peaks: [u32; BLOCK],
    picked: [f32; BLOCK],
}

impl Reader {
    fn new(bins: Bins) -> Self {
        Self { bins, peaks: [0; BLOCK], picked: [0.0; BLOCK] }
    }

    fn read(mut self, mut share: Share<'_, Update<'_>>) {
        share.worker.clear();
        let (numel, unit, tile) = (share.range.len(), unit(self.bins.bin), tile(self.bins.bin));
        let worker = &mut *share.worker;
        if !worker
            .candidates
            .admit_memory(allocate::reserve(&mut worker.sums, numel.div_ceil(unit)))
        {
            return;
        }
        for chunk in steps(0..numel, unit) {
            let mut sum = 0.0;
            for range in steps(chunk, tile) {
                sum += if tile <= BLOCK {
                    self.read_tile(&mut share, range)
                } else {
                    self.read_bin(&mut share, range)
                };
            }
            share.worker.sums.push(Moments { sum, ..Moments::default() });
        }
    }

    /// Picks from the whole bins of a block; the sum of their maxima.
    fn read_tile(&mut self, share: &mut Share<'_, Update<'_>>, range: Range<usize>) -> f64 {
        let Share { kernels, range: all, what: update, worker } = share;
        let Bins { bin, ahead } = self.bins;
        let (at, len) = (all.start + range.start, range.len());
        let (peaks, picked) = (&mut self.peaks[..len.div_ceil(bin)], &mut self.picked[..len]);
        let (new, sums) = update.pair(Block::new(kernels, range, &mut worker.scratch));
        kernels.bins(new, sums, ahead, bin, peaks, picked);
        worker.take_in(kernels, picked, at);
        let mut sum = 0.0;
        for &mut peak in peaks {
            worker.peak = worker.peak.max(peak);
            sum += f64::from(f32::from_bits(peak));
        }
        sum
    }

    /// Picks from a bin of several blocks; its maximum.
    fn read_bin(&mut self, share: &mut Share<'_, Update<'_>>, bin: Range<usize>) -> f64 {
        let Share { kernels, range: all, what: update, worker } = share;
        let mut peak = 0;
        for range in steps(bin.clone(), BLOCK) {
            let (_, sums) = update.pair(Block::new(kernels, range, &mut worker.scratch));
            peak = peak.max(kernels.peak(sums));
        }
        worker.peak = worker.peak.max(peak);
        let least = f32::from_bits(peak);
        for range in steps(bin, BLOCK) {
            let (at, picked) = (all.start + range.start, &mut self.picked[..range.len()]);
            let block = Block::new(kernels, range, &mut worker.scratch);
            let (new, sums) = update.pair_again(block);
            kernels.pick(new, sums, self.bins.ahead, least, picked);
            worker.take_in(kernels, picked, at);
        }
        f64::from(least)
    }
}

impl Worker {
    /// Keeps the entries of a block that are not zero.
    fn take_in(&mut self, kernels: &Kernels, picked: &[f32], base: usize) {
        let Some((indices, values)) = self.candidates.spare(picked.len()) else { return };
        let count = kernels.above(picked, 0.0, base as u32, indices, values);
        self.candidates.admit(count);
    }
}
