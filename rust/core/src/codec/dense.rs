//! Encoding every entry.
//!
//! Each block is read, coded right where the frame wants it, and what coding took away goes to the
//! residual, all while the block is in the cache. Scales have to be known before the first code of
//! their group: groups that the cache holds are summed up just before they are coded, many short ones
//! at once; longer ones are summed up in a read of their own, ahead of everything.

use super::feedback::Sink;
use super::totals::{Totals, summarize};
use super::{Codec, Encoded, State, Workspace, limit_too_small, non_finite};
use crate::pack::Pattern;
use crate::pool;
use crate::quantize::{
    Basis, Coder, LONGEST, LONGEST_FIT, Place, Quantizer, Room, Scales, SectionMut, store,
};
use crate::scan::{CHUNK, Field, Remembered, STEP, Scratch, Source};
use crate::simd::peak::NON_FINITE;
use crate::simd::{Kernels, LANES};
use crate::{Input, Result, frame, room};

impl Codec {
    pub(super) fn encode_dense(
        &self,
        input: Input<'_>,
        state: &mut State,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Vec<u8>,
    ) -> Result<Encoded> {
        let numel = input.len();
        let need = frame::dense_len(self.quantizer, numel as u64);
        if let Some(limit) = max_len.filter(|&limit| need > limit) {
            return Err(limit_too_small(limit, need));
        }
        workspace.begin();
        let scale = self.scale(input, &mut workspace.scanner)?;
        let peak = self.look_ahead(input, state, scale, workspace)?;
        let coding = self.quantizer.coding(numel as u64, f32::from_bits(peak));
        let hints = self.hints(state, None);
        let layout = self.layout(input, Pattern::Any);
        if state.is_in_place() {
            // Allocated before the residual is overwritten, as the rest is.
            room::reserve(out, need)?;
            workspace.ask()?;
        }
        let mut peak = 0;
        frame::write_dense(layout, numel as u64, coding, out, |section| {
            let SectionMut { scales, codes } = coding.begin(numel as u64, numel as u64, section);
            let job = Job {
                kernels: workspace.scanner.kernels,
                quantizer: self.quantizer,
                coder: Coder { kernels: workspace.scanner.kernels, coding, hints },
                group: coding.grouping().dense_len(numel),
            };
            let part = Part { codes, first: 0, scales: job.scales(scales, &workspace.totals) };
            peak = match self.sink(input, state, scale) {
                Sink::None(gradient) => job.start(gradient, part, workspace),
                Sink::Residual(sum) => job.start(sum, part, workspace),
                Sink::LowPass(filter) => job.start(filter, part, workspace),
                Sink::Correcting(velocity) => job.start(velocity, part, workspace),
            };
        })?;
        if peak >= NON_FINITE {
            // In place it was not there when that was looked at. Elsewhere the memory is what it was.
            let error = non_finite(&self.view(input, state, scale), workspace.scanner.kernels);
            return Err(state.disturbed(error));
        }
        let tracker = state.tracker(self);
        state.commit(self, tracker);
        Ok(Encoded { count: numel as u64, target: None, threshold: 0.0, trimmed: 0 })
    }

    /// Reads what has to be known before anything is written: sums over groups that no cache holds,
    /// the largest magnitude where the quantizer or a residual in place wants it. Its bits.
    fn look_ahead(
        &self,
        input: Input<'_>,
        state: &State,
        scale: f32,
        workspace: &mut Workspace,
    ) -> Result<u32> {
        let numel = input.len();
        let group = self.quantizer.coding(numel as u64, 0.0).grouping().dense_len(numel);
        let Some(group) = group.filter(|&len| len > CHUNK) else {
            if state.is_in_place() || self.quantizer.needs_peak() {
                return self.read_ahead(input, state, scale, &mut workspace.scanner);
            }
            return Ok(0);
        };
        let view = self.view(input, state, scale);
        workspace.totals.gather(view, group, self.quantizer.basis(), &workspace.scanner)?;
        match workspace.totals.peak() {
            NON_FINITE.. => Err(non_finite(&view, workspace.scanner.kernels)),
            peak => Ok(peak),
        }
    }
}

const _: () = assert!(STEP <= LONGEST, "a step has room");

/// Where a dense encode reads, and where what it did not send goes.
trait Rounded: Source {
    /// Has the block from position `at` coded; the bits of its largest magnitude, where that is not
    /// known otherwise.
    fn round(
        &mut self,
        job: Job,
        at: usize,
        len: usize,
        block: Coded<'_>,
        scratch: &mut Scratch,
    ) -> u32;
}

impl Rounded for Field<'_> {
    fn round(
        &mut self,
        job: Job,
        at: usize,
        len: usize,
        coded: Coded<'_>,
        scratch: &mut Scratch,
    ) -> u32 {
        let block = match self.0 {
            // A copy, so that what is coded is what is looked at, whoever writes to it meanwhile.
            // Where groups were summed up, any values give codes that a frame may have.
            Input::F32(x) if job.group.is_none() => scratch.copy(&x[at..at + len]),
            _ => self.block(job.kernels, at, len, scratch),
        };
        job.coder.code(block, coded.place, coded.codes, coded.room);
        if job.group.is_some() { 0 } else { job.kernels.peak(block) }
    }
}

impl<S: Remembered> Rounded for S {
    fn round(
        &mut self,
        job: Job,
        at: usize,
        len: usize,
        coded: Coded<'_>,
        scratch: &mut Scratch,
    ) -> u32 {
        let block = self.take(job.kernels, at, len, scratch);
        // Groups were summed up in a read of their own: this one may have found something else.
        let peak = job.kernels.peak(block);
        job.coder.code_left(block, coded.place, coded.codes, coded.room);
        self.keep(job.kernels, at, block);
        peak
    }
}

/// A block that is being coded.
struct Coded<'a> {
    /// Where its codes go.
    codes: &'a mut [u8],
    place: Place<'a>,
    room: &'a mut Room,
}

/// The scales of one thread's share.
enum Table<'a> {
    /// There are none, or they are known: those of the whole frame.
    Known(&'a [[u8; 4]]),
    /// Those of this share, each to be fitted before its group is coded.
    Open(&'a mut [[u8; 4]]),
}

/// One thread's share of the value section.
struct Part<'a> {
    codes: &'a mut [u8],
    /// The rank of its first entry.
    first: usize,
    scales: Table<'a>,
}

/// How blocks are coded.
#[derive(Clone, Copy)]
struct Job {
    kernels: &'static Kernels,
    quantizer: Quantizer,
    coder: Coder,
    /// Entries that share scales, if any do.
    group: Option<usize>,
}

impl Job {
    /// The scales of the frame, filled in where they are known ahead.
    fn scales<'a>(self, scales: &'a mut [[u8; 4]], totals: &Totals) -> Table<'a> {
        match self.group {
            None => Table::Known(&[]),
            Some(len) if len <= CHUNK => Table::Open(scales),
            Some(_) => {
                let each = self.coder.coding.scales();
                for (scales, total) in scales.chunks_mut(each).zip(totals.of_groups()) {
                    store(
                        &self.quantizer.scales(&total, self.coder.hints.magnitude)[..each],
                        scales,
                    );
                }
                Table::Known(scales)
            }
        }
    }

    fn start<S: Rounded>(self, source: S, part: Part<'_>, workspace: &Workspace) -> u32 {
        let width = workspace.scanner.width(source.len());
        match pool::acquire(width) {
            Some(pool) => pool.install(|| self.spread(source, part, width)),
            None => self.run(source, part),
        }
    }

    /// What is never shared between threads: a chunk, or as many groups as begin on a whole line of
    /// the cache.
    fn unit(self, scales: &Table<'_>) -> usize {
        match (scales, self.group) {
            (Table::Open(_), Some(group)) => {
                let unit = group * (LANES >> group.trailing_zeros().min(LANES.trailing_zeros()));
                unit * (CHUNK / unit).max(1)
            }
            _ => CHUNK,
        }
    }

    /// Shares the work between threads.
    fn spread<S: Rounded>(self, source: S, part: Part<'_>, width: usize) -> u32 {
        let unit = self.unit(&part.scales);
        let half = width / 2;
        let middle = source.len().div_ceil(unit) * half / width.max(1) * unit;
        if width < 2 || middle == 0 {
            return self.run(source, part);
        }
        let (head, rest) = source.split_at(middle);
        let bits = self.coder.coding.code_bits() as usize;
        let (front, back) = part.codes.split_at_mut(middle * bits / 8);
        let (near, far) = match (part.scales, self.group) {
            (Table::Open(scales), Some(group)) => {
                let (near, far) = scales.split_at_mut(middle / group * self.coder.coding.scales());
                (Table::Open(near), Table::Open(far))
            }
            (Table::Open(scales), None) => (Table::Known(scales), Table::Known(&[])),
            (Table::Known(scales), _) => (Table::Known(scales), Table::Known(scales)),
        };
        let first = part.first;
        let (left, right) = rayon::join(
            || self.spread(head, Part { codes: front, first, scales: near }, half),
            || {
                let part = Part { codes: back, first: first + middle, scales: far };
                self.spread(rest, part, width - half)
            },
        );
        left.max(right)
    }

    fn run<S: Rounded>(self, mut source: S, mut part: Part<'_>) -> u32 {
        let _streaming = self.kernels.streaming();
        let (mut scratch, mut room) = (Scratch::default(), Room::default());
        let (mut peak, mut fitted) = (0, 0);
        let bits = self.coder.coding.code_bits() as usize;
        for at in (0..source.len()).step_by(STEP) {
            let len = STEP.min(source.len() - at);
            // A group that was summed up a moment ago is in the cache to its end.
            if fitted < at + STEP {
                source.fetch(self.kernels, at + STEP);
            }
            if let (Table::Open(scales), Some(group)) = (&mut part.scales, self.group) {
                while fitted < at + len {
                    let groups = (at + len - fitted).div_ceil(group);
                    let size = (groups * group).min(source.len() - fitted);
                    let each = self.coder.coding.scales();
                    let scales = &mut scales[fitted / group * each..][..groups * each];
                    peak = peak.max(if group <= STEP {
                        let told = self.coder.hints.magnitude;
                        let block = source.block(self.kernels, fitted, size, &mut scratch);
                        self.quantizer.fit_groups(
                            self.kernels,
                            (block, group),
                            told,
                            (scales, each),
                        )
                    } else {
                        let (fit, largest) = self.fit(&source, fitted, size, &mut scratch);
                        store(&fit[..each], scales);
                        largest
                    });
                    fitted += size;
                }
            }
            let drawn = part.first + at;
            let (scales, first) = match &part.scales {
                Table::Known(scales) => (*scales, drawn),
                Table::Open(scales) => (&**scales, at),
            };
            let codes = &mut part.codes[at * bits / 8..((at + len) * bits).div_ceil(8)];
            let place = Place { first, drawn, positions: None, scales };
            let coded = Coded { codes, place, room: &mut room };
            peak = peak.max(source.round(self, at, len, coded, &mut scratch));
        }
        peak
    }

    /// The scales of a group that the cache holds, and the bits of its largest magnitude.
    fn fit<S: Source>(
        self,
        source: &S,
        at: usize,
        len: usize,
        scratch: &mut Scratch,
    ) -> (Scales, u32) {
        let told = self.coder.hints.magnitude;
        let summary = match self.quantizer.basis() {
            Basis::Values => {
                let mut values = [0.0; LONGEST_FIT];
                for from in (at..at + len).step_by(STEP) {
                    let len = STEP.min(at + len - from);
                    let block = source.block(self.kernels, from, len, scratch);
                    values[from - at..][..len].copy_from_slice(block);
                }
                let values = &values[..len];
                return (self.quantizer.fit(self.kernels, values, told), self.kernels.peak(values));
            }
            basis => summarize(self.kernels, source, basis, at, len, scratch),
        };
        (self.quantizer.scales(&summary, told), summary.peak)
    }
}
