//! One read of a tensor that picks entries bin by bin.
//!
//! Two sweeps over a bin, while it is in the cache: one adds the residual and finds the largest
//! magnitude, the other picks. Bins are handled in blocks of as many whole ones as the first cache
//! holds; a bin larger than that is swept twice on its own.
//!
//! The maxima are summed in float64, bin after bin in each chunk, chunk after chunk.

use super::source::{Accumulated, Field, Scratch, Source, write};
use super::{CHUNK, Part, Scanner, Totals};
use crate::fit::Moments;
use crate::pool;
use crate::room;
use crate::simd::{BLOCK, Kernels, LANES};

/// What to pick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bins {
    /// Elements of a bin.
    pub bin: usize,
    /// How often the new gradient is added before an entry is compared with the largest of its bin.
    pub ahead: f32,
}

/// A source whose new gradient is seen beside the sums.
pub(crate) trait Paired: Source {
    /// Adds the residual to a block and writes the sums down; the gradient and the sums.
    fn add<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32])
    where
        Self: 's;

    /// The gradient and the sums of a block that were written down.
    fn again<'s>(
        &'s self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32]);
}

impl Paired for Field<'_> {
    fn add<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32])
    where
        Self: 's,
    {
        let block = self.float32(kernels, at, len, &mut scratch.widened);
        (block, block)
    }

    fn again<'s>(
        &'s self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32]) {
        let block = self.float32(kernels, at, len, &mut scratch.widened);
        (block, block)
    }
}

impl Paired for Accumulated<'_> {
    fn add<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32])
    where
        Self: 's,
    {
        let Scratch { widened, sum, .. } = scratch;
        let gradient = self.gradient.float32(kernels, at, len, widened);
        let sum = &mut sum[..len];
        let residual = self.residual.unwrap_or(self.sum);
        kernels.add(sum, gradient, &residual[at..at + len], self.decay);
        write(kernels, &mut self.sum[at..at + len], sum, self.streams);
        (gradient, sum)
    }

    fn again<'s>(
        &'s self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> (&'s [f32], &'s [f32]) {
        let gradient = self.gradient.float32(kernels, at, len, &mut scratch.widened);
        (gradient, &self.sum[at..at + len])
    }
}

impl Bins {
    /// Elements worked on at a time: whole bins, and whole vectors of them if possible.
    fn tile(self) -> usize {
        let most = (BLOCK / self.bin).max(1);
        let aligned = (1..=most).rev().find(|bins| (bins * self.bin).is_multiple_of(LANES));
        aligned.unwrap_or(most) * self.bin
    }

    /// Whether sums are read again from where they were written down.
    pub fn reads_back(self) -> bool {
        self.bin > BLOCK
    }

    /// Elements whose maxima are added up before they join those of other chunks.
    fn chunk(self) -> usize {
        self.tile() * (CHUNK / self.tile()).max(1)
    }
}

impl Scanner {
    /// Reads the source once; the survivors are what was picked, and the sum of the moments is that
    /// of the maxima.
    pub fn scan_bins<S: Paired>(&mut self, source: S, bins: Bins) -> Totals {
        let width = self.width(source.len()).min(source.len() / bins.chunk()).max(1);
        let pool = pool::acquire(width);
        let width = if pool.is_some() { width } else { 1 };
        if self.parts.len() < width {
            self.parts.resize_with(width, Part::default);
        }
        let (kernels, parts) = (self.kernels, &mut self.parts[..width]);
        match pool {
            Some(pool) => pool.install(|| spread(kernels, source, 0, bins, parts)),
            None => spread(kernels, source, 0, bins, parts),
        }
        let everything = super::Request::above(0.0, usize::MAX);
        self.collect(width, &everything)
    }
}

/// Gives each part an equal share of whole chunks.
fn spread<S: Paired>(
    kernels: &'static Kernels,
    source: S,
    start: usize,
    bins: Bins,
    parts: &mut [Part],
) {
    if let [part] = parts {
        Reader::new(kernels, source, start, bins).read(part);
        return;
    }
    let half = parts.len() / 2;
    let chunks = source.len().div_ceil(bins.chunk());
    let middle = (chunks * half / parts.len()) * bins.chunk();
    let (left, right) = parts.split_at_mut(half);
    let (head, rest) = source.split_at(middle);
    rayon::join(
        || spread(kernels, head, start, bins, left),
        || spread(kernels, rest, start + middle, bins, right),
    );
}

/// One thread's share of the tensor, which begins at position `start`, and blocks of scratch memory.
struct Reader<S> {
    kernels: &'static Kernels,
    source: S,
    start: usize,
    bins: Bins,
    scratch: Scratch,
    peaks: [u32; BLOCK],
    picked: [f32; BLOCK],
}

impl<S: Paired> Reader<S> {
    fn new(kernels: &'static Kernels, source: S, start: usize, bins: Bins) -> Self {
        let scratch = Scratch::default();
        Self { kernels, source, start, bins, scratch, peaks: [0; BLOCK], picked: [0.0; BLOCK] }
    }

    fn read(mut self, part: &mut Part) {
        let _streaming = self.kernels.streaming();
        part.peak = 0;
        part.sums.clear();
        part.survivors.clear();
        part.complete = true;
        let (numel, chunk, tile) = (self.source.len(), self.bins.chunk(), self.bins.tile());
        let chunks = numel.div_ceil(chunk);
        if !part.survivors.admit_memory(room::reserve(&mut part.sums, chunks)) {
            return;
        }
        for first in (0..numel).step_by(chunk) {
            let mut sum = 0.0;
            for at in (first..numel.min(first + chunk)).step_by(tile) {
                let len = tile.min(numel - at);
                sum += if tile <= BLOCK {
                    self.read_tile(at, len, part)
                } else {
                    self.read_bin(at, len, part)
                };
            }
            part.sums.push(Moments { sum, ..Moments::default() });
        }
    }

    /// Picks from the whole bins of a block; the sum of their maxima.
    fn read_tile(&mut self, at: usize, len: usize, part: &mut Part) -> f64 {
        let Bins { bin, ahead } = self.bins;
        let (gradient, sums) = self.source.add(self.kernels, at, len, &mut self.scratch);
        let (peaks, picked) = (&mut self.peaks[..len.div_ceil(bin)], &mut self.picked[..len]);
        self.kernels.bins(gradient, sums, ahead, bin, peaks, picked);
        part.take_in(self.kernels, picked, self.start + at);
        let mut sum = 0.0;
        for &mut peak in peaks {
            part.peak = part.peak.max(peak);
            sum += f64::from(f32::from_bits(peak));
        }
        sum
    }

    /// Picks from a bin of several blocks; its maximum.
    fn read_bin(&mut self, at: usize, len: usize, part: &mut Part) -> f64 {
        let blocks =
            (at..at + len).step_by(BLOCK).map(|block| (block, BLOCK.min(at + len - block)));
        let mut peak = 0;
        for (at, len) in blocks.clone() {
            let (_, sums) = self.source.add(self.kernels, at, len, &mut self.scratch);
            peak = peak.max(self.kernels.peak(sums));
        }
        part.peak = part.peak.max(peak);
        let least = f32::from_bits(peak);
        for (at, len) in blocks {
            let (gradient, sums) = self.source.again(self.kernels, at, len, &mut self.scratch);
            let picked = &mut self.picked[..len];
            self.kernels.pick(gradient, sums, self.bins.ahead, least, picked);
            part.take_in(self.kernels, picked, self.start + at);
        }
        f64::from(least)
    }
}

impl Part {
    /// Keeps the entries of a block that are not zero.
    fn take_in(&mut self, kernels: &Kernels, picked: &[f32], base: usize) {
        let Some((indices, values)) = self.survivors.room(picked.len()) else { return };
        let count = kernels.above(picked, 0.0, base as u32, indices, values);
        self.survivors.admit(count);
    }
}
