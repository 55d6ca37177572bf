//! Memory and kernels for reads, and what threads find.

use super::{CHUNK, Candidates, Scratch, Share, sums};
use crate::fit::Moments;
use crate::simd::Kernels;

/// What was gathered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    /// Bits of the largest magnitude.
    pub peak: u32,
    /// Sums over the exceedances; `zeros` counts the entries without one.
    pub moments: Moments,
    /// Whether all entries that were asked for were kept.
    pub complete: bool,
}

/// Where one thread works: its memory, and what it finds. To be used again.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Bits of the largest magnitude.
    pub peak: u32,
    /// Of each chunk.
    pub(super) sums: Vec<Moments>,
    /// The entries that are kept.
    pub candidates: Candidates,
    /// Whether all that were asked for are.
    pub(super) complete: bool,
    pub local: Local,
    /// Filling it with zeros costs as much as a small tensor.
    pub scratch: Box<Scratch>,
}

/// Memory for what takes more than a block.
#[derive(Debug, Default)]
pub(crate) struct Local {
    /// Elements that had to be brought together.
    pub floats: Vec<f32>,
    /// Magnitudes.
    pub bits: Vec<u32>,
    /// Positions within something.
    pub places: Vec<u32>,
    /// Entries in another order than that of their positions.
    pub entries: Candidates,
}

impl Worker {
    /// Clears the worker for entries of which nothing is known before.
    pub(super) fn clear(&mut self) {
        self.peak = 0;
        self.sums.clear();
        self.candidates.clear();
        self.complete = true;
    }

    fn bytes(&self) -> usize {
        let Local { floats, bits, places, entries } = &self.local;
        let words = floats.capacity() + bits.capacity() + places.capacity();
        let sums = size_of::<Moments>() * self.sums.capacity();
        sums + size_of::<u32>() * words + self.candidates.bytes() + entries.bytes()
    }
}

/// Memory and kernels for reads, to be used again: none allocates once it has grown.
#[derive(Debug)]
pub(crate) struct Scanner {
    pub kernels: &'static Kernels,
    /// How many threads to use; none asks the pool's setting.
    pub threads: Option<usize>,
    /// How many elements each is worth.
    pub grain: usize,
    /// One for each thread; the first has what all have found.
    workers: Vec<Worker>,
}

impl Scanner {
    pub fn new(kernels: &'static Kernels, threads: Option<usize>) -> Self {
        Self { kernels, threads, grain: 2 * CHUNK, workers: vec![Worker::default()] }
    }

    /// The entries that the last read has kept, if it was asked for any.
    pub fn candidates(&self) -> &Candidates {
        &self.workers[0].candidates
    }

    /// As [`Scanner::candidates`], to narrow them down.
    pub fn candidates_mut(&mut self) -> &mut Candidates {
        &mut self.workers[0].candidates
    }

    /// The worker of a read that is not shared.
    pub fn first(&mut self) -> &mut Worker {
        &mut self.workers[0]
    }

    /// Begins an encode: what the last one failed for may be there again.
    pub fn begin(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.candidates.forgive());
    }

    /// Empty memory for entries that are put aside.
    pub fn take_entries(&mut self) -> Candidates {
        let mut entries = std::mem::take(&mut self.workers[0].local.entries);
        entries.clear();
        entries.forgive();
        entries
    }

    /// The way back of [`Scanner::take_entries`].
    pub fn put_entries(&mut self, entries: Candidates) {
        self.workers[0].local.entries = entries;
    }

    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        self.workers.iter().map(Worker::bytes).sum()
    }

    /// Has `work` find the candidates in each share of a tensor, as [`Scanner::parallel`] hands them out.
    pub fn find(&mut self, len: usize, unit: usize, work: impl Fn(Share<'_, ()>) + Sync) {
        let workers = self.parallel(len, unit, (), |share| {
            share.worker.candidates.clear();
            work(share);
        });
        gather(workers);
    }

    /// So many workers.
    pub(super) fn workers(&mut self, width: usize) -> &mut [Worker] {
        if self.workers.len() < width {
            self.workers.resize_with(width, Worker::default);
        }
        &mut self.workers[..width]
    }
}

/// Puts together, on the first worker, what was found on all of them; the entries too if any were kept,
/// unless they are more than a `cap`.
pub(super) fn collect(workers: &mut [Worker], cap: Option<usize>) -> Totals {
    let mut moments = Moments::default();
    for chunk in workers.iter().flat_map(|worker| &worker.sums) {
        sums::add(&mut moments, chunk);
    }
    let peak = workers.iter().map(|worker| worker.peak).max().unwrap_or(0);
    let found: usize = workers.iter().map(|worker| worker.candidates.len()).sum();
    let complete = workers.iter().all(|worker| worker.complete);
    let complete = complete && cap.is_some_and(|cap| found <= cap);
    if complete {
        gather(workers);
    } else if let Some((first, rest)) = workers.split_first_mut() {
        let failed = |worker: &Worker| worker.candidates.check_memory().err();
        rest.iter().filter_map(failed).for_each(|error| first.candidates.fail(error));
        if cap.is_some() {
            first.candidates.clear();
        }
    }
    Totals { peak, moments, complete }
}

/// Puts the entries of all workers on the first one, in order.
fn gather(workers: &mut [Worker]) {
    if let Some((first, rest)) = workers.split_first_mut() {
        for worker in rest {
            first.candidates.append(&worker.candidates);
        }
    }
}
