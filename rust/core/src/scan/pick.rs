//! One read of a tensor that selects entries part by part.
//!
//! Where the entries of a part depend on nothing outside of it, they can be selected while the sums of
//! the part are in the first cache. That pays where the sums are not what is written, so that a second
//! read would have to add everything up again. Where they are, one loop that adds and writes, and a
//! second read, are faster: between one kernel and the next over a block no load is under way.

use super::source::Scratch;
use super::{CHUNK, Paired, Part, Scanner, Survivors, Totals};
use crate::pool;
use crate::room;
use crate::simd::{BLOCK, Kernels, LANES};

/// What is selected of each part.
pub(crate) trait Pick: Copy + Sync {
    /// Elements of a part; the last one of a tensor may be shorter.
    fn part(self) -> usize;

    /// Adds the entries of `sums`, whole parts from position `at` of the tensor on, to the
    /// survivors. `bits` is memory to use again.
    fn pick(
        self,
        kernels: &Kernels,
        sums: &[f32],
        at: usize,
        bits: &mut Vec<u32>,
        survivors: &mut Survivors,
    );
}

/// What the largest part is: beyond it, sums leave the cache before they are searched.
pub(crate) const LONGEST_PART: usize = 16 * BLOCK;

/// Elements worked on together: whole parts, and whole vectors of them if possible.
fn step(part: usize) -> usize {
    let most = (BLOCK / part).max(1);
    let aligned = (1..=most).rev().find(|parts| (parts * part).is_multiple_of(LANES));
    aligned.unwrap_or(most) * part
}

/// Elements that one thread takes at least, and whole multiples of them.
fn chunk(part: usize) -> usize {
    step(part) * (CHUNK / step(part)).max(1)
}

impl Scanner {
    /// Reads the source once; the survivors are what was picked.
    pub fn scan_picking<S: Paired>(&mut self, source: S, pick: impl Pick) -> Totals {
        let chunks = source.len() / chunk(pick.part());
        let width = self.width(source.len()).min(chunks).max(1);
        let pool = pool::acquire(width);
        let width = if pool.is_some() { width } else { 1 };
        if self.parts.len() < width {
            self.parts.resize_with(width, Part::default);
        }
        let (kernels, parts) = (self.kernels, &mut self.parts[..width]);
        match pool {
            Some(pool) => pool.install(|| spread(kernels, source, 0, pick, parts)),
            None => spread(kernels, source, 0, pick, parts),
        }
        let everything = super::Request { bound: Some(0.0), cap: usize::MAX, ..Default::default() };
        self.collect(width, &everything)
    }
}

/// Gives each thread an equal share of whole chunks.
fn spread<S: Paired>(
    kernels: &'static Kernels,
    source: S,
    start: usize,
    pick: impl Pick,
    parts: &mut [Part],
) {
    if let [part] = parts {
        part.pick(kernels, source, start, pick);
        return;
    }
    let half = parts.len() / 2;
    let chunk = chunk(pick.part());
    let middle = (source.len().div_ceil(chunk) * half / parts.len()) * chunk;
    let (left, right) = parts.split_at_mut(half);
    let (head, rest) = source.split_at(middle);
    rayon::join(
        || spread(kernels, head, start, pick, left),
        || spread(kernels, rest, start + middle, pick, right),
    );
}

impl Part {
    /// Reads a share of the tensor that begins at position `start`.
    fn pick<S: Paired>(&mut self, kernels: &Kernels, mut source: S, start: usize, pick: impl Pick) {
        let _streaming = kernels.streaming();
        self.peak = 0;
        self.sums.clear();
        self.survivors.clear();
        self.complete = true;
        let step = step(pick.part());
        for at in (0..source.len()).step_by(step) {
            let len = step.min(source.len() - at);
            self.pick_from(kernels, &mut source, start, (at, len), pick);
        }
    }

    /// Picks from whole parts.
    fn pick_from<S: Paired>(
        &mut self,
        kernels: &Kernels,
        source: &mut S,
        start: usize,
        (at, len): (usize, usize),
        pick: impl Pick,
    ) {
        let (local, survivors) = (&mut self.local, &mut self.survivors);
        let scratch: &mut Scratch = &mut self.scratch;
        let sums = if len <= BLOCK {
            source.add(kernels, at, len, scratch).1
        } else {
            if !survivors.admit_memory(room::resize(&mut local.floats, len)) {
                return;
            }
            for (i, part) in local.floats.chunks_mut(BLOCK).enumerate() {
                part.copy_from_slice(source.add(kernels, at + i * BLOCK, part.len(), scratch).1);
            }
            &local.floats[..]
        };
        self.peak = self.peak.max(kernels.peak(sums));
        pick.pick(kernels, sums, start + at, &mut local.bits, survivors);
    }
}
