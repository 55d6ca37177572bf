//! Memory and kernels for reads, and what threads find.

use super::{CHUNK, Scratch, Share, Survivors, sums};
use crate::Result;
use crate::fit::Moments;
use crate::simd::{BLOCK, Kernels};

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
pub(crate) struct Desk {
    /// Bits of the largest magnitude.
    pub peak: u32,
    /// Of each chunk.
    pub(super) sums: Vec<Moments>,
    /// The entries that are kept.
    pub survivors: Survivors,
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
    pub entries: Survivors,
}

impl Desk {
    /// Clears the desk for entries of which nothing is known before.
    pub(super) fn clear(&mut self) {
        self.peak = 0;
        self.sums.clear();
        self.survivors.clear();
        self.complete = true;
    }

    fn bytes(&self) -> usize {
        let Local { floats, bits, places, entries } = &self.local;
        let words = floats.capacity() + bits.capacity() + places.capacity();
        let sums = size_of::<Moments>() * self.sums.capacity();
        sums + size_of::<u32>() * words + self.survivors.bytes() + entries.bytes()
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
    desks: Vec<Desk>,
}

impl Scanner {
    pub fn new(kernels: &'static Kernels, threads: Option<usize>) -> Self {
        Self { kernels, threads, grain: 2 * CHUNK, desks: vec![Desk::default()] }
    }

    /// The entries that the last read has kept, if it was asked for any.
    pub fn survivors(&self) -> &Survivors {
        &self.desks[0].survivors
    }

    /// As [`Scanner::survivors`], to narrow them down.
    pub fn survivors_mut(&mut self) -> &mut Survivors {
        &mut self.desks[0].survivors
    }

    /// Begins an encode: what the last one failed for may be there again.
    pub fn begin(&mut self) {
        self.desks.iter_mut().for_each(|desk| desk.survivors.forgive());
    }

    /// Makes sure that a read of `len` elements which keeps nothing cannot fail.
    pub fn make_room(&mut self, len: usize) -> Result<()> {
        let width = self.width(len);
        for desk in self.desks(width) {
            desk.survivors.reserve(BLOCK);
            desk.survivors.check_memory()?;
        }
        Ok(())
    }

    /// Empty memory for entries that are put aside.
    pub fn take_entries(&mut self) -> Survivors {
        let mut entries = std::mem::take(&mut self.desks[0].local.entries);
        entries.clear();
        entries.forgive();
        entries
    }

    /// The way back of [`Scanner::take_entries`].
    pub fn put_entries(&mut self, entries: Survivors) {
        self.desks[0].local.entries = entries;
    }

    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        self.desks.iter().map(Desk::bytes).sum()
    }

    /// Has `work` find the survivors in each share of a tensor, as [`Scanner::fan`] hands them out.
    pub fn find(&mut self, len: usize, unit: usize, work: impl Fn(Share<'_, ()>) + Sync) {
        let desks = self.fan(len, unit, (), |share| {
            share.desk.survivors.clear();
            work(share);
        });
        gather(desks);
    }

    /// So many desks.
    pub(super) fn desks(&mut self, width: usize) -> &mut [Desk] {
        if self.desks.len() < width {
            self.desks.resize_with(width, Desk::default);
        }
        &mut self.desks[..width]
    }
}

/// Puts together, on the first desk, what was found on all of them; the entries too if any were kept,
/// unless they are more than a `cap`.
pub(super) fn collect(desks: &mut [Desk], cap: Option<usize>) -> Totals {
    let mut moments = Moments::default();
    for chunk in desks.iter().flat_map(|desk| &desk.sums) {
        sums::add(&mut moments, chunk);
    }
    let peak = desks.iter().map(|desk| desk.peak).max().unwrap_or(0);
    let found: usize = desks.iter().map(|desk| desk.survivors.len()).sum();
    let complete = desks.iter().all(|desk| desk.complete);
    let complete = complete && cap.is_some_and(|cap| found <= cap);
    if complete {
        gather(desks);
    } else if let Some((first, rest)) = desks.split_first_mut() {
        let failed = |desk: &Desk| desk.survivors.check_memory().err();
        rest.iter().filter_map(failed).for_each(|error| first.survivors.fail(error));
        if cap.is_some() {
            first.survivors.clear();
        }
    }
    Totals { peak, moments, complete }
}

/// Puts the entries of all desks on the first one, in order.
fn gather(desks: &mut [Desk]) {
    if let Some((first, rest)) = desks.split_first_mut() {
        for desk in rest {
            first.survivors.append(&desk.survivors);
        }
    }
}
