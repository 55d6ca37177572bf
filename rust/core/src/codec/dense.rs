//! Encoding every entry.
//!
//! Each block is read, coded right where the frame wants it, and what coding took away goes to the
//! residual, all while the block is in the cache. Scales have to be known before the first code of
//! their group: groups that the cache holds are summed up just before they are coded, many short ones
//! at once; longer ones are summed up in a read of their own, ahead of everything.

use super::totals::summarize;
use super::{Codec, Encoded, State, Workspace, limit_too_small, non_finite};
use crate::frame::{self, Destination};
use crate::pack::Pattern;
use crate::quantize::{
    Basis, Coder, LONGEST, LONGEST_FIT, Place, Quantizer, Scratch, SectionMut, store,
};
use crate::scan::{Block, CHUNK, STEP, Share, Split, Tensor, Update, Worker, is_streamed, steps};
use crate::simd::peak::NON_FINITE;
use crate::simd::{BLOCK, LANES};
use crate::{Input, Result, allocate};

impl Codec {
    pub(super) fn encode_dense(
        &self,
        input: Input<'_>,
        state: &mut State,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Destination<'_>,
    ) -> Result<Encoded> {
        let numel = input.len();
        let need = frame::dense_len(self.quantizer, numel as u64);
        if let Some(limit) = max_len.filter(|&limit| need > limit) {
            return Err(limit_too_small(limit, need));
        }
        workspace.begin();
        let scale = self.scale(input, &mut workspace.scanner)?;
        let peak = self.look_ahead(input, state, scale, out.is_spared(), workspace)?;
        let layout = self.layout(input, Pattern::Any);
        let quantizer = layout.quantizer;
        let coding = quantizer.coding(numel as u64, f32::from_bits(peak));
        let hints = self.hints(state, None);
        let mut peak = 0;
        let mut codes = std::mem::take(&mut workspace.codes);
        let has_blocks = coding.float().is_some();
        let fill = |section: &mut [u8]| {
            let SectionMut { scales, codes } = coding.begin(numel as u64, numel as u64, section);
            let job = Job {
                quantizer,
                coder: Coder { kernels: workspace.scanner.kernels, coding, hints },
                group: coding.grouping().dense_len(numel),
                streams: is_streamed(numel),
            };
            let scales = job.scales(scales, workspace, &self.tensor(input, state, scale));
            let update = self.update(input, state, scale);
            let unit = job.unit(&scales);
            let target = Target { job, update, codes, scales };
            let workers = workspace.scanner.parallel(numel, unit, target, code);
            peak = workers.iter().map(|worker| worker.peak).max().unwrap_or(0);
        };
        if has_blocks {
            let codes = &mut Destination::from(&mut codes.frame);
            frame::write_dense(layout, numel as u64, coding, codes, fill)?;
        } else {
            frame::write_dense(layout, numel as u64, coding, out, fill)?;
        }
        if peak >= NON_FINITE {
            // The memory is what it was.
            return Err(non_finite(&self.tensor(input, state, scale), workspace.scanner.kernels));
        }
        if has_blocks {
            frame::compress(workspace.kernels(), &mut codes, coding, None, out)?;
        }
        workspace.codes = codes;
        let tracker = state.tracker(self);
        state.commit(self, tracker);
        let (nbytes, count) = (out.frame().len(), numel as u64);
        Ok(Encoded { nbytes, count, target: None, threshold: 0.0, trimmed: 0 })
    }

    /// Reads what has to be known before anything is written: sums over groups that no cache holds,
    /// the largest magnitude where the quantizer wants it or nothing may fail later. Its bits.
    fn look_ahead(
        &self,
        input: Input<'_>,
        state: &State,
        scale: f32,
        nothing_may_fail: bool,
        workspace: &mut Workspace,
    ) -> Result<u32> {
        let numel = input.len();
        let (basis, group) = (self.quantizer.basis(), self.quantizer.coding(numel as u64, 0.0));
        let group = group.grouping().dense_len(numel).filter(|&len| len > basis.longest());
        if let (Some(len), Basis::Values) = (group, basis)
            && self.tensor(input, state, scale).as_slice().is_none()
        {
            allocate::reserve(&mut workspace.scanner.first().local.floats, len)?;
        }
        let Some(group) = group.filter(|_| basis != Basis::Values) else {
            if nothing_may_fail || self.quantizer.needs_peak() || group.is_some() {
                return self.read_ahead(input, state, scale, &mut workspace.scanner);
            }
            return Ok(0);
        };
        let tensor = self.tensor(input, state, scale);
        let Workspace { scanner, totals, .. } = workspace;
        totals.gather(tensor, group, basis, scanner)?;
        match totals.peak() {
            NON_FINITE.. => Err(non_finite(&tensor, scanner.kernels)),
            peak => Ok(peak),
        }
    }
}

const _: () = assert!(STEP <= LONGEST, "a step has room");

/// How blocks are coded.
#[derive(Clone, Copy)]
struct Job {
    quantizer: Quantizer,
    coder: Coder,
    /// Entries that share scales, if any do.
    group: Option<usize>,
    /// Whether codes may go past the caches: they are read once more, for the checksum, and by then those
    /// of a large frame have left the caches.
    streams: bool,
}

/// What is read, and the part of a frame that it becomes.
struct Target<'a> {
    job: Job,
    update: Update<'a>,
    codes: &'a mut [u8],
    scales: Table<'a>,
}

/// The scales of a frame.
enum Table<'a> {
    /// All of them, or none.
    Known(&'a [[u8; 4]]),
    /// Those of this part, to be filled in as its groups come up.
    Open(&'a mut [[u8; 4]]),
}

impl Job {
    /// The scales of the frame, filled in where they are known ahead.
    fn scales<'a>(
        self,
        scales: &'a mut [[u8; 4]],
        workspace: &mut Workspace,
        tensor: &Tensor<'_>,
    ) -> Table<'a> {
        let (each, told) = (self.coder.coding.scales(), self.coder.hints.magnitude);
        match (self.group, self.quantizer.basis()) {
            (None, _) => Table::Known(&[]),
            (Some(len), basis) if len <= basis.longest() => Table::Open(scales),
            (Some(len), Basis::Values) => {
                let (kernels, exponent) = (self.coder.kernels, self.coder.coding.exponent());
                let Worker { local, scratch, .. } = workspace.scanner.first();
                let groups = steps(0..tensor.len(), len).zip(scales.chunks_mut(each));
                for (range, scales) in groups {
                    let values = if let Some(values) = tensor.as_slice() {
                        &values[range]
                    } else {
                        // There is room for it since the tensor was read ahead.
                        local.floats.resize(range.len(), 0.0);
                        tensor.copy(kernels, range.start, &mut local.floats, scratch);
                        &local.floats
                    };
                    let (groups, scales) = ((values, len), (scales, each));
                    self.quantizer.fit_groups(kernels, exponent, groups, told, scales);
                }
                Table::Known(scales)
            }
            _ => {
                let totals = workspace.totals.of_groups();
                for (scales, total) in scales.chunks_mut(each).zip(totals) {
                    store(&self.quantizer.scales(&total, told)[..each], scales);
                }
                Table::Known(scales)
            }
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

    /// Bits of a code.
    fn bits(self) -> usize {
        self.coder.coding.code_bits() as usize
    }
}

impl Split for Target<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { job, update, codes, scales } = self;
        let (update, later) = update.split_at(middle);
        let (codes, late_codes) = codes.split_at_mut(middle * job.bits() / 8);
        let (scales, late_scales) = match (scales, job.group) {
            (Table::Open(scales), Some(group)) => {
                let (near, far) = scales.split_at_mut(middle / group * job.coder.coding.scales());
                (Table::Open(near), Table::Open(far))
            }
            (Table::Open(_), None) => (Table::Known(&[][..]), Table::Known(&[][..])),
            (Table::Known(scales), _) => (Table::Known(scales), Table::Known(scales)),
        };
        (
            Self { job, update, codes, scales },
            Self { job, update: later, codes: late_codes, scales: late_scales },
        )
    }
}

/// Codes the share of a thread.
fn code(share: Share<'_, Target<'_>>) {
    let Share { kernels, range: all, what, worker } = share;
    let Target { job, mut update, codes, mut scales } = what;
    let (bits, mut scratch) = (job.bits(), Scratch::default());
    let (mut peak, mut fitted, each) = (0, 0, job.coder.coding.scales());
    for range in steps(0..all.len(), STEP) {
        // A group that was summed up a moment ago is in the cache to its end.
        if fitted < range.start + STEP {
            update.fetch(kernels, range.start + STEP);
        }
        if let (Table::Open(scales), Some(group)) = (&mut scales, job.group) {
            // Short ones of values that lie in memory many at once.
            let until = if group <= STEP && update.tensor().as_slice().is_some() {
                all.len().min(range.start + BLOCK)
            } else {
                range.end
            };
            while fitted < range.end {
                let groups = (until - fitted).div_ceil(group);
                let size = (groups * group).min(all.len() - fitted);
                let block = Block::new(kernels, fitted..fitted + size, &mut worker.scratch);
                let scales = &mut scales[fitted / group * each..][..groups * each];
                peak = peak.max(job.fit(&update.tensor(), block, group, scales));
                fitted += size;
            }
        }
        let drawn = all.start + range.start;
        let (scales, first) = match &scales {
            Table::Known(scales) => (*scales, drawn),
            Table::Open(scales) => (&**scales, range.start),
        };
        let codes = &mut codes[range.start * bits / 8..(range.end * bits).div_ceil(8)];
        let place = Place { first, drawn, positions: None, scales };
        let block = Block::new(kernels, range.clone(), &mut worker.scratch);
        if update.writes() {
            let left = update.take(block);
            // Groups were summed up in a read of their own: this one may have found something else.
            peak = peak.max(kernels.peak(left));
            job.coder.code_left(left, place, codes, &mut scratch);
            update.keep(kernels, &range, left);
        } else if job.group.is_none() {
            // A copy, so that what is coded is what is looked at, whoever writes to it meanwhile.
            let values = update.take(block);
            let streams = job.streams.then_some(kernels);
            job.coder.code(values, place, codes, &mut scratch, streams);
            peak = peak.max(kernels.peak(values));
        } else {
            // Groups were summed up: any values give codes that a frame may have.
            job.coder.code(update.tensor().sums(block), place, codes, &mut scratch, None);
        }
    }
    worker.peak = peak;
}

impl Job {
    /// Fits the scales of the groups of a block, or of one that the cache holds; the bits of the largest
    /// magnitude.
    #[inline(always)]
    fn fit(
        &self,
        tensor: &Tensor<'_>,
        block: Block<'_>,
        group: usize,
        scales: &mut [[u8; 4]],
    ) -> u32 {
        let (kernels, told) = (block.kernels, self.coder.hints.magnitude);
        let exponent = self.coder.coding.exponent();
        let (at, len, each) = (block.range.start, block.range.len(), self.coder.coding.scales());
        if group <= STEP {
            let groups = (tensor.sums(block), group);
            return self.quantizer.fit_groups(kernels, exponent, groups, told, (scales, each));
        }
        match self.quantizer.basis() {
            Basis::Values => {
                let values = &mut [0.0; LONGEST_FIT][..len];
                tensor.copy(kernels, at, values, block.scratch);
                let groups = (&*values, group);
                self.quantizer.fit_groups(kernels, exponent, groups, told, (scales, each))
            }
            basis => {
                let summary = summarize(tensor, basis, block);
                store(&self.quantizer.scales(&summary, told)[..each], scales);
                summary.peak
            }
        }
    }
}
