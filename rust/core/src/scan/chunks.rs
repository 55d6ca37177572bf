//! One read of a tensor that finds the largest entries of each chunk.
//!
//! Where the entries of a chunk depend on nothing outside of it, they can be found while its sums are
//! in the first cache. That pays where the sums are not what is written, so that a second read would
//! have to add everything up again. Where they are, one loop that adds and writes, and a second read,
//! are faster: between one kernel and the next over a block no load is under way.

use super::source::{Scratch, Source};
use super::{CHUNK, Local, Paired, Part, Scanner, Share, Survivors, Totals, View, search};
use crate::pool;
use crate::room;
use crate::simd::{BLOCK, Kernels, LANES};

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
    /// Adds the entries of whole chunks `x` from position `at` of the tensor on to the survivors.
    /// `bits` is memory to use again.
    pub fn search(
        self,
        kernels: &Kernels,
        x: &[f32],
        at: usize,
        bits: &mut Vec<u32>,
        survivors: &mut Survivors,
    ) {
        let Self { chunk, k } = self;
        if k == 1 {
            let Some((indices, values)) = survivors.room(x.len().div_ceil(chunk)) else { return };
            let count = kernels.leaders(x, chunk, at as u32, indices, values);
            survivors.admit(count);
            return;
        }
        for (i, x) in x.chunks(chunk).enumerate() {
            search::largest(kernels, x, k, (at + i * chunk) as u32, bits, survivors);
        }
    }
}

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
    pub fn scan_chunks<S: Paired>(&mut self, source: S, chunks: Chunks) -> Totals {
        let width = self.width(source.len()).min(source.len() / chunk(chunks.chunk)).max(1);
        let pool = pool::acquire(width);
        let width = if pool.is_some() { width } else { 1 };
        if self.parts.len() < width {
            self.parts.resize_with(width, Part::default);
        }
        let (kernels, parts) = (self.kernels, &mut self.parts[..width]);
        match pool {
            Some(pool) => pool.install(|| spread(kernels, source, 0, chunks, parts)),
            None => spread(kernels, source, 0, chunks, parts),
        }
        let everything = super::Request::above(0.0, usize::MAX);
        self.collect(width, &everything)
    }
}

/// Gives each thread an equal share of whole chunks.
fn spread<S: Paired>(
    kernels: &'static Kernels,
    source: S,
    start: usize,
    chunks: Chunks,
    parts: &mut [Part],
) {
    if let [part] = parts {
        part.pick(kernels, source, start, chunks);
        return;
    }
    let half = parts.len() / 2;
    let chunk = chunk(chunks.chunk);
    let middle = (source.len().div_ceil(chunk) * half / parts.len()) * chunk;
    let (left, right) = parts.split_at_mut(half);
    let (head, rest) = source.split_at(middle);
    rayon::join(
        || spread(kernels, head, start, chunks, left),
        || spread(kernels, rest, start + middle, chunks, right),
    );
}

impl Part {
    /// Reads a share of the tensor that begins at position `start`.
    fn pick<S: Paired>(&mut self, kernels: &Kernels, mut source: S, start: usize, chunks: Chunks) {
        let _streaming = kernels.streaming();
        self.peak = 0;
        self.sums.clear();
        self.survivors.clear();
        self.complete = true;
        let step = step(chunks.chunk);
        for at in (0..source.len()).step_by(step) {
            let len = step.min(source.len() - at);
            self.pick_from(kernels, &mut source, start, (at, len), chunks);
        }
    }

    /// Picks from whole parts.
    fn pick_from<S: Paired>(
        &mut self,
        kernels: &Kernels,
        source: &mut S,
        start: usize,
        (at, len): (usize, usize),
        chunks: Chunks,
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
        chunks.search(kernels, sums, start + at, &mut local.bits, survivors);
    }
}

impl Scanner {
    /// Finds the same in a tensor that was read before.
    pub fn search_chunks(&mut self, view: View<'_>, chunks: Chunks) {
        let Chunks { chunk, k } = chunks;
        let numel = view.len();
        let step = if k == 1 { chunk * (TOGETHER / chunk).max(1) } else { chunk };
        self.share(numel.div_ceil(chunk), numel, |share| {
            let Share { kernels, units, survivors, local } = share;
            let Local { floats, bits, .. } = local;
            let end = numel.min(units.end * chunk);
            for at in (units.start * chunk..end).step_by(step) {
                match view.run(kernels, at, step.min(end - at), floats) {
                    Ok(x) => chunks.search(kernels, x, at, bits, survivors),
                    Err(error) => return survivors.fail(error),
                }
            }
        });
    }
}
