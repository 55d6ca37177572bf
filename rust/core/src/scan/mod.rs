//! One read of a tensor that gathers all that a sparsifier asks for.
//!
//! A tensor is read in chunks of [`CHUNK`] elements, each in blocks that stay in the L1 cache while
//! one kernel after the other runs over them. Sums are kept for each chunk and added in the order
//! of chunks, entries above the bound are kept in the order of positions: neither depends on how
//! many threads took part.

mod bins;
mod chunks;
mod low_pass;
mod momentum;
mod preview;
mod request;
mod sample;
mod search;
mod share;
mod source;
mod survivors;
mod view;

pub(crate) use bins::{Bins, Paired};
pub(crate) use chunks::{Chunks, LONGEST_CHUNK};
pub(crate) use low_pass::LowPass;
pub(crate) use momentum::{Corrected, Correcting};
pub(crate) use preview::Preview;
pub(crate) use request::{Entries, Request};
pub(crate) use sample::{MOST_LOOKED_AT, jitter, magnitude_above};
pub(crate) use share::{Local, Share};
pub(crate) use source::{Accumulated, Field, Remembered, STEP, Scratch, Source};
pub(crate) use survivors::Survivors;
pub(crate) use view::View;

use crate::Result;
use crate::fit::Moments;
use crate::pool;
use crate::room;
use crate::simd::sweep::Gather;
use crate::simd::{self, BLOCK, Kernels, log_sum, moments, total};

/// Elements whose sums are added up before they join those of other chunks. A multiple of the
/// block, and what one thread takes at least.
pub(crate) const CHUNK: usize = 32 * BLOCK;

/// What was gathered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    /// Bits of the largest magnitude.
    pub peak: u32,
    /// Sums over the exceedances; `zeros` counts the entries without one.
    pub moments: Moments,
    /// Whether all entries above the bound were kept.
    pub complete: bool,
}

fn add(total: &mut Moments, part: &Moments) {
    total.count += part.count;
    total.zeros += part.zeros;
    total.sum += part.sum;
    total.sum_sq += part.sum_sq;
    total.sum_ln += part.sum_ln;
    total.signed += part.signed;
}

/// What one thread gathers.
#[derive(Debug, Default)]
struct Part {
    peak: u32,
    /// Of each chunk.
    sums: Vec<Moments>,
    survivors: Survivors,
    complete: bool,
    local: Local,
    /// Kept from scan to scan: filling it with zeros costs as much as a small tensor.
    scratch: Box<Scratch>,
}

/// Memory and kernels for scans, to be used again: no scan allocates once it has grown.
#[derive(Debug)]
pub(crate) struct Scanner {
    pub kernels: &'static Kernels,
    /// How many threads to use; none asks the pool's setting.
    pub threads: Option<usize>,
    parts: Vec<Part>,
}

impl Scanner {
    pub fn new(kernels: &'static Kernels, threads: Option<usize>) -> Self {
        Self { kernels, threads, parts: vec![Part::default()] }
    }

    /// The entries above the bound of the last scan that had one.
    pub fn survivors(&self) -> &Survivors {
        &self.parts[0].survivors
    }

    /// As [`Scanner::survivors`], to narrow them down.
    pub fn survivors_mut(&mut self) -> &mut Survivors {
        &mut self.parts[0].survivors
    }

    /// Begins an encode: what the last one failed for may be there again.
    pub fn begin(&mut self) {
        self.parts.iter_mut().for_each(|part| part.survivors.forgive());
    }

    /// Makes sure that a scan of `len` elements which keeps nothing cannot fail.
    pub fn make_room(&mut self, len: usize) -> Result<()> {
        let width = self.width(len);
        if self.parts.len() < width {
            self.parts.resize_with(width, Part::default);
        }
        for part in &mut self.parts[..width] {
            part.survivors.reserve(BLOCK);
            part.survivors.check_memory()?;
        }
        Ok(())
    }

    /// Empty memory for entries that are put aside.
    pub fn take_entries(&mut self) -> Survivors {
        let mut entries = std::mem::take(&mut self.parts[0].local.entries);
        entries.clear();
        entries.forgive();
        entries
    }

    /// The way back of [`Scanner::take_entries`].
    pub fn put_entries(&mut self, entries: Survivors) {
        self.parts[0].local.entries = entries;
    }

    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// How many threads a scan of `len` elements is worth: two chunks each at least.
    pub fn width(&self, len: usize) -> usize {
        let most = len / (2 * CHUNK);
        if most < 2 { 1 } else { self.threads.unwrap_or_else(pool::num_threads).clamp(1, most) }
    }

    /// Reads the source once.
    pub fn scan<S: Source>(&mut self, source: S, request: &Request) -> Totals {
        let width = self.width(source.len());
        let pool = pool::acquire(width);
        let width = if pool.is_some() { width } else { 1 };
        if self.parts.len() < width {
            self.parts.resize_with(width, Part::default);
        }
        let (kernels, parts) = (self.kernels, &mut self.parts[..width]);
        match pool {
            Some(pool) => pool.install(|| spread(kernels, source, 0, request, parts)),
            None => spread(kernels, source, 0, request, parts),
        }
        self.collect(width, request)
    }

    /// Puts the parts together in order.
    fn collect(&mut self, width: usize, request: &Request) -> Totals {
        let parts = &mut self.parts[..width];
        let mut moments = Moments::default();
        for chunk in parts.iter().flat_map(|part| &part.sums) {
            add(&mut moments, chunk);
        }
        let peak = parts.iter().map(|part| part.peak).max().unwrap_or(0);
        for i in 1..parts.len() {
            let failed = parts[i].survivors.check_memory();
            parts[0].survivors.admit_memory(failed);
        }
        let mut complete = false;
        if let Entries::Above { cap, .. } = request.entries {
            let found: usize = parts.iter().map(|part| part.survivors.len()).sum();
            complete = parts.iter().all(|part| part.complete) && found <= cap;
            let (first, rest) = parts.split_at_mut(1);
            let survivors = &mut first[0].survivors;
            if complete {
                for part in rest {
                    survivors.append(&part.survivors);
                }
            } else {
                survivors.clear();
            }
        }
        Totals { peak, moments, complete }
    }
}

/// Gives each part an equal share of whole chunks.
fn spread<S: Source>(
    kernels: &'static Kernels,
    source: S,
    start: usize,
    request: &Request,
    parts: &mut [Part],
) {
    if let [part] = parts {
        part.read(kernels, source, start, request);
        return;
    }
    let half = parts.len() / 2;
    let chunks = source.len().div_ceil(CHUNK);
    let middle = (chunks * half / parts.len()) * CHUNK;
    let (left, right) = parts.split_at_mut(half);
    let (head, rest) = source.split_at(middle);
    rayon::join(
        || spread(kernels, head, start, request, left),
        || spread(kernels, rest, start + middle, request, right),
    );
}

impl Part {
    fn bytes(&self) -> usize {
        let sums = size_of::<Moments>() * self.sums.capacity();
        sums + self.survivors.bytes() + self.local.bytes()
    }

    /// Reads a share of the tensor that begins at position `start`.
    fn read<S: Source>(
        &mut self,
        kernels: &Kernels,
        mut source: S,
        start: usize,
        request: &Request,
    ) {
        let _streaming = kernels.streaming();
        self.peak = 0;
        self.sums.clear();
        self.complete = true;
        if let Entries::Above { cap, .. } = request.entries {
            self.survivors.restart(cap, source.len());
        }
        let chunks = if request.location.is_some() { source.len().div_ceil(CHUNK) } else { 0 };
        self.survivors.admit_memory(room::reserve(&mut self.sums, chunks));
        let mut at = 0;
        while at < source.len() {
            let len = CHUNK.min(source.len() - at);
            self.read_chunk(kernels, &mut source, start, at..at + len, request);
            at += len;
        }
    }

    fn read_chunk<S: Source>(
        &mut self,
        kernels: &Kernels,
        source: &mut S,
        start: usize,
        range: std::ops::Range<usize>,
        request: &Request,
    ) {
        let mut lanes = moments::Lanes::default();
        let mut logs = log_sum::Lanes::default();
        let mut signed = total::Lanes::default();
        let (above, cap) = match request.entries {
            Entries::Above { bound, cap } => (bound, cap),
            _ => (f32::INFINITY, usize::MAX),
        };
        let scratch = &mut *self.scratch;
        for at in range.clone().step_by(BLOCK) {
            let len = BLOCK.min(range.end - at);
            let Some((indices, values)) = self.survivors.room(len) else {
                // The encode will fail: what is left unread does not matter.
                self.complete = false;
                return;
            };
            let bound = if self.complete { above } else { f32::INFINITY };
            let base = (start + at) as u32;
            let moments = request.location.map(|location| (location, &mut lanes));
            let gather = Gather { moments, bound, base, indices, values };
            let found = source.sweep(kernels, at, len, scratch, gather);
            self.peak = self.peak.max(found.peak);
            self.survivors.admit(found.count);
            self.complete &= self.survivors.len() <= cap;
            if request.logs {
                kernels.log_sum(source.swept(kernels, at, len, scratch), &mut logs);
            }
            if request.signed {
                kernels.total(source.swept(kernels, at, len, scratch), &mut signed);
            }
        }
        if request.location.is_some() {
            let sum_ln = if request.logs { logs.sum_ln() } else { 0.0 };
            let moments = of_lanes(&lanes);
            let zeros = range.len() as u64 - moments.count;
            self.sums.push(Moments { zeros, sum_ln, signed: signed.sum(), ..moments });
        }
    }
}

fn of_lanes(lanes: &moments::Lanes) -> Moments {
    Moments { count: lanes.count(), sum: lanes.sum(), sum_sq: lanes.sum_sq(), ..Moments::default() }
}

/// Moments of the exceedances over a location, from entries that were compacted before: the same to
/// the last bit as [`Request::location`] gives, if the entries are all that exceed it. Entries
/// without an exceedance are not counted.
pub(crate) fn tail_of(survivors: &Survivors, location: f32) -> Moments {
    let mut total = Moments::default();
    let mut lanes = moments::Lanes::default();
    let mut chunk = 0;
    for (&index, &value) in survivors.indices().iter().zip(survivors.values()) {
        let home = index as usize / CHUNK;
        if home != chunk {
            add(&mut total, &of_lanes(&std::mem::take(&mut lanes)));
            chunk = home;
        }
        lanes.push(index, value, location);
    }
    add(&mut total, &of_lanes(&lanes));
    total
}

const _: () = assert!(CHUNK.is_multiple_of(BLOCK) && BLOCK.is_multiple_of(simd::LANES));

#[cfg(test)]
mod tests;
