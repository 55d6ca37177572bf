//! Work shared between threads: the only place that knows of the pool.

use std::ops::Range;

use super::{Scanner, Worker};
use crate::pool;
use crate::simd::Kernels;
use crate::simd::stream::Streaming;

/// What threads share: each has the elements of its own.
pub(crate) trait Split: Send + Sized {
    /// The elements before position `middle`, and those from there on.
    fn split_at(self, middle: usize) -> (Self, Self);
}

/// For work that needs to know no more than which elements.
impl Split for () {
    fn split_at(self, _middle: usize) -> (Self, Self) {
        ((), ())
    }
}

/// The share of one thread.
pub(crate) struct Share<'d, S> {
    pub kernels: &'d Streaming<'d>,
    /// Which elements of the tensor: all of some units.
    pub range: Range<usize>,
    /// What of these elements is shared, counted from where the range begins.
    pub what: S,
    /// Where the thread works.
    pub worker: &'d mut Worker,
}

impl Scanner {
    /// How many threads a tensor of `len` elements is worth.
    pub fn width(&self, len: usize) -> usize {
        let most = len / self.grain;
        if most < 2 { 1 } else { self.threads.unwrap_or_else(pool::num_threads).clamp(1, most) }
    }

    /// Shares the elements of a tensor of `len` between threads, in whole units of `unit` elements
    /// of which the last may be shorter, each thread as many in a row as any other. The workers that
    /// were worked at are in the order of their shares.
    ///
    /// What is done to a unit must not depend on which thread does it: then nothing depends on how
    /// many there are.
    pub fn parallel<S: Split>(
        &mut self,
        len: usize,
        unit: usize,
        what: S,
        work: impl Fn(Share<'_, S>) + Sync,
    ) -> &mut [Worker] {
        let width = self.width(len).min(len / unit).max(1);
        let pool = pool::acquire(width);
        let width = if pool.is_some() { width } else { 1 };
        let kernels = self.kernels;
        let workers = self.workers(width);
        match pool {
            Some(pool) => pool.install(|| spread(kernels, 0..len, unit, what, workers, &work)),
            None => spread(kernels, 0..len, unit, what, workers, &work),
        }
        self.workers(width)
    }
}

/// Gives each worker an equal share of whole units.
fn spread<S: Split>(
    kernels: &Kernels,
    range: Range<usize>,
    unit: usize,
    what: S,
    workers: &mut [Worker],
    work: &(impl Fn(Share<'_, S>) + Sync),
) {
    if let [worker] = workers {
        return kernels.streaming(|kernels| work(Share { kernels, range, what, worker }));
    }
    let half = workers.len() / 2;
    let middle = range.len().div_ceil(unit) * half / workers.len() * unit;
    let (left, right) = workers.split_at_mut(half);
    let (near, far) = what.split_at(middle);
    let middle = range.start + middle;
    rayon::join(
        || spread(kernels, range.start..middle, unit, near, left, work),
        || spread(kernels, middle..range.end, unit, far, right, work),
    );
}
