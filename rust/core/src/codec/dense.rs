//! Encoding every entry.
//!
//! Each block is read, rounded to codes right where the frame wants them, and what rounding took
//! away goes to the residual, all while the block is in the cache.

use super::{Codec, Encoded, State, Workspace, limit_too_small, non_finite};
use crate::frame;
use crate::memory::Memory;
use crate::pool;
use crate::quantize::Quantizer;
use crate::scan::{Accumulated, CHUNK, Field, Scratch, Source};
use crate::simd::peak::NON_FINITE;
use crate::simd::{BLOCK, Kernels};
use crate::{Input, Result};

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
        let mut exponent = 0;
        if state.is_in_place() || self.quantizer == (Quantizer::Float16 { scaled: true }) {
            let peak = self.read_ahead(input, state, &mut workspace.scanner)?;
            exponent = self.quantizer.scale_exponent(&[f32::from_bits(peak)]);
        }
        let layout = self.layout(input);
        let mut peak = 0;
        frame::write_dense(layout, numel as u64, exponent, out, |codes| {
            peak = match (&mut state.residual, self.memory) {
                (Some(residual), Memory::Residual { decay, .. }) => {
                    let (residual, sum) = residual.begin();
                    let gradient = Field(input);
                    let source = Accumulated::new(gradient, residual, decay, sum);
                    self.round(source, exponent, codes, workspace)
                }
                _ => self.round(Field(input), exponent, codes, workspace),
            };
        })?;
        if peak >= NON_FINITE {
            // In place it was found ahead. Elsewhere the sums are gone, but what is left of one that
            // is not finite is not finite either.
            let field = state.residual.as_ref().map_or(Field(input), |r| Field::plain(r.next()));
            return Err(non_finite(&field, workspace.scanner.kernels));
        }
        let tracker = state.tracker.clone();
        state.commit(tracker);
        Ok(Encoded { count: numel as u64, target: None, threshold: 0.0, trimmed: 0 })
    }

    /// Rounds all of a source to codes; the bits of its largest magnitude.
    fn round<S: Rounded>(
        &self,
        source: S,
        exponent: i16,
        codes: &mut [u8],
        workspace: &mut Workspace,
    ) -> u32 {
        let scanner = &workspace.scanner;
        let job = Job { kernels: scanner.kernels, quantizer: self.quantizer, exponent };
        let width = scanner.width(source.len());
        match pool::acquire(width) {
            Some(pool) => pool.install(|| job.spread(source, codes, width)),
            None => job.run(source, codes),
        }
    }
}

/// Where a dense encode reads, and where what it did not send goes.
trait Rounded: Source {
    /// Has the block from position `at` rounded to codes; the bits of its largest magnitude.
    fn round(&mut self, job: Job, at: usize, codes: &mut [u8], scratch: &mut Scratch) -> u32;
}

impl Rounded for Field<'_> {
    fn round(&mut self, job: Job, at: usize, codes: &mut [u8], scratch: &mut Scratch) -> u32 {
        let block = self.block(job.kernels, at, job.len(codes), scratch);
        job.quantizer.encode_into(job.exponent, block, codes);
        (job.kernels.peak)(block)
    }
}

impl Rounded for Accumulated<'_> {
    fn round(&mut self, job: Job, at: usize, codes: &mut [u8], scratch: &mut Scratch) -> u32 {
        let block = self.preview().add(job.kernels, at, job.len(codes), scratch);
        let peak = (job.kernels.peak)(block);
        job.quantizer.encode_into(job.exponent, block, codes);
        let mut sent = [0.0; BLOCK];
        let sent = &mut sent[..block.len()];
        job.quantizer.decode_into(job.exponent, codes, sent);
        for (left, sent) in block.iter_mut().zip(sent) {
            *left -= *sent;
        }
        self.write(job.kernels, at, block);
        peak
    }
}

/// How blocks are rounded.
#[derive(Clone, Copy)]
struct Job {
    kernels: &'static Kernels,
    quantizer: Quantizer,
    exponent: i16,
}

impl Job {
    /// Shares the work between threads, in whole chunks.
    fn spread<S: Rounded>(self, source: S, codes: &mut [u8], width: usize) -> u32 {
        if width < 2 {
            return self.run(source, codes);
        }
        let half = width / 2;
        let middle = source.len().div_ceil(CHUNK) * half / width * CHUNK;
        let (head, rest) = source.split_at(middle);
        let (front, back) = codes.split_at_mut(middle * self.quantizer.bytes_per_value());
        let (left, right) = rayon::join(
            || self.spread(head, front, half),
            || self.spread(rest, back, width - half),
        );
        left.max(right)
    }

    fn run<S: Rounded>(self, mut source: S, codes: &mut [u8]) -> u32 {
        let mut scratch = Scratch::default();
        let mut peak = 0;
        for (i, codes) in codes.chunks_mut(BLOCK * self.quantizer.bytes_per_value()).enumerate() {
            peak = peak.max(source.round(self, i * BLOCK, codes, &mut scratch));
        }
        (self.kernels.fence)();
        peak
    }

    /// How many values these codes are.
    fn len(self, codes: &[u8]) -> usize {
        codes.len() / self.quantizer.bytes_per_value()
    }
}
