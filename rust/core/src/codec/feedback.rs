//! What an encode reads of a memory, and what it writes there.
//!
//! The first read puts gradient and memory together and writes into the spare buffers what the memory
//! becomes of entries that are not sent. Those that are sent are put right afterwards, by what the
//! receiver decodes. The buffers become the memory when the state commits.

use super::{Codec, State, Workspace, non_finite};
use crate::memory::{Memory, MomentumCorrection, Residual};
use crate::quantize::{Decoder, Quantizer, ValueCoding};
use crate::scan::{
    Accumulated, Corrected, Correcting, Entries, Field, LowPass, Paired, Preview, Request, Scanner,
    Totals, View,
};
use crate::simd::BLOCK;
use crate::simd::momentum::Rule;
use crate::simd::peak::NON_FINITE;
use crate::{Error, Input, Result};

impl Codec {
    /// What the gradient is multiplied by before all else: 1, unless its norm is to be clipped.
    pub(super) fn scale(&self, input: Input<'_>, scanner: &mut Scanner) -> Result<f32> {
        let Memory::MomentumCorrection(MomentumCorrection { clip: Some(clip), .. }) = self.memory
        else {
            return Ok(1.0);
        };
        let gradient = Field(input);
        let totals = scanner.scan(gradient, &Request::moments(0.0));
        if totals.peak >= NON_FINITE {
            return Err(non_finite(&gradient, scanner.kernels));
        }
        let norm = libm::sqrt(totals.moments.sum_sq);
        let clip = f64::from(clip);
        Ok(if norm > clip { (clip / norm) as f32 } else { 1.0 })
    }

    /// What there is to encode: gradient and memory together, before anything is written.
    pub(super) fn view<'a>(&self, input: Input<'a>, state: &'a State, scale: f32) -> View<'a> {
        let gradient = Field(input);
        let Some(residual) = &state.residual else { return View::Plain(gradient) };
        let residual = residual.as_slice();
        match (self.memory, &state.momentum) {
            (Memory::Residual(Residual { decay, .. }), _) => {
                View::Sum(Preview { gradient, residual, decay })
            }
            (Memory::MomentumCorrection(correction), Some(momentum)) => {
                let (momentum, rule) = (momentum.as_slice(), rule(correction, scale));
                View::Corrected(Corrected { gradient, momentum, velocity: residual, rule })
            }
            _ => View::Sum(Preview { gradient, residual, decay: 1.0 }),
        }
    }

    /// The same after [`Codec::accumulate`], from where it takes the fewest reads.
    pub(super) fn written<'a>(&self, input: Input<'a>, state: &'a State) -> View<'a> {
        match (&state.residual, self.memory) {
            (Some(residual), Memory::Residual(Residual { .. }) | Memory::MomentumCorrection(_)) => {
                View::Plain(Field::plain(residual.next()))
            }
            _ => self.view(input, state, 1.0),
        }
    }

    /// Reads all of it and gathers what is requested; the memory's next values are written meanwhile.
    pub(super) fn accumulate(
        &self,
        input: Input<'_>,
        state: &mut State,
        scale: f32,
        request: &Request,
        scanner: &mut Scanner,
    ) -> Totals {
        // What is read again while it is written has to stay in the cache.
        let streams = !request.reads_back();
        match self.sink(input, state, scale) {
            Sink::None(gradient) => read(gradient, request, scanner),
            Sink::Residual(mut sum) => {
                sum.streams &= streams;
                read(sum, request, scanner)
            }
            // The sums are nowhere afterwards: they had to be added up again to be searched.
            Sink::LowPass(filter) => match request.entries {
                Entries::Chunks(chunks) => scanner.scan_chunks(filter, chunks),
                _ => read(filter, request, scanner),
            },
            Sink::Correcting(mut velocity) => {
                velocity.streams &= streams;
                read(velocity, request, scanner)
            }
        }
    }

    /// As [`Codec::accumulate`] of a residual in one buffer, which stays as it is.
    pub(super) fn survey(
        &self,
        input: Input<'_>,
        state: &State,
        request: &Request,
        scanner: &mut Scanner,
    ) -> Totals {
        match (self.view(input, state, 1.0), request.entries) {
            (View::Sum(sum), Entries::Chunks(chunks)) => scanner.scan_chunks(sum, chunks),
            (View::Sum(sum), _) => read(sum, request, scanner),
            (view, _) => scanner.scan(view, request),
        }
    }

    /// Writes the sums over a residual in one buffer, of which [`Codec::survey`] has found that all are
    /// finite. The survivors stay. The last moment to cancel the encode is before.
    pub(super) fn overwrite(
        &self,
        input: Input<'_>,
        state: &mut State,
        workspace: &mut Workspace,
    ) -> Result<()> {
        workspace.scanner.make_room(input.len())?;
        workspace.ask()?;
        let request = Request::default();
        let totals = self.accumulate(input, state, 1.0, &request, &mut workspace.scanner);
        if totals.peak >= NON_FINITE { Err(state.disturbed(Error::Changed)) } else { Ok(()) }
    }

    /// What the first read reads and writes.
    pub(super) fn sink<'a>(&self, input: Input<'a>, state: &'a mut State, scale: f32) -> Sink<'a> {
        let gradient = Field(input);
        match (self.memory, &mut state.residual, &mut state.momentum) {
            (Memory::Residual(Residual { decay, .. }), Some(residual), _) => {
                let (residual, sum) = residual.begin();
                Sink::Residual(Accumulated::new(gradient, residual, decay, sum))
            }
            (Memory::LowPass(filter), Some(memory), _) => {
                let (memory, next) = memory.begin_apart();
                Sink::LowPass(LowPass::new(gradient, memory, filter, next))
            }
            (Memory::MomentumCorrection(correction), Some(velocity), Some(momentum)) => {
                let (velocity, next) = velocity.begin_apart();
                let (momentum, moved) = momentum.begin_apart();
                let rule = rule(correction, scale);
                let from = Corrected { gradient, momentum, velocity, rule };
                Sink::Correcting(Correcting::new(from, moved, next))
            }
            _ => Sink::None(gradient),
        }
    }

    /// Puts right what the memory becomes of the survivors, which the receiver decodes.
    /// `frame` ends with their values in this coding.
    pub(super) fn subtract(
        &self,
        coding: ValueCoding,
        frame: &[u8],
        state: &mut State,
        workspace: &mut Workspace,
    ) {
        let numel = state.numel() as u64;
        let Some(residual) = &mut state.residual else { return };
        let survivors = workspace.scanner.survivors();
        let (indices, values) = (survivors.indices(), survivors.values());
        if let (Quantizer::Float32, Memory::Residual(Residual { .. })) =
            (self.quantizer, self.memory)
        {
            let next = residual.next_mut();
            for &index in indices {
                next[index as usize] = 0.0;
            }
            return;
        }
        let count = values.len() as u64;
        let section = &frame[frame.len() - coding.value_len(numel, count) as usize..];
        let section = coding.section(numel, count, section);
        // By blocks, so that what was decoded is still in the cache.
        let (mut decoder, mut sent) =
            (Decoder::new(workspace.kernels(), coding, section), [0.0; BLOCK]);
        let blocks = indices.chunks(BLOCK).zip(values.chunks(BLOCK));
        for (block, (indices, values)) in blocks.enumerate() {
            let sent = &mut sent[..values.len()];
            decoder.decode(block * BLOCK, Some(indices), sent);
            let entries = indices.iter().zip(values).zip(&*sent);
            let left = entries.map(|((&index, &value), &sent)| (index as usize, value - sent));
            if let Memory::LowPass(low_pass) = self.memory {
                let (memory, next) = residual.begin_apart();
                left.for_each(|(i, left)| next[i] = low_pass.keep(memory[i], left));
            } else {
                let next = residual.next_mut();
                left.for_each(|(i, left)| next[i] = left);
            }
        }
        if let (Memory::MomentumCorrection(correction), Some(momentum)) =
            (self.memory, &mut state.momentum)
            && correction.masking
        {
            let moved = momentum.next_mut();
            for &index in indices {
                moved[index as usize] = 0.0;
            }
        }
    }
}

/// The source of the first read, by memory.
pub(super) enum Sink<'a> {
    /// Nothing is written.
    None(Field<'a>),
    Residual(Accumulated<'a>),
    LowPass(LowPass<'a>),
    Correcting(Correcting<'a>),
}

/// The first read, bin by bin if that is wanted.
fn read<S: Paired>(source: S, request: &Request, scanner: &mut Scanner) -> Totals {
    match request.entries {
        Entries::Bins(bins) => scanner.scan_bins(source, bins),
        _ => scanner.scan(source, request),
    }
}

fn rule(correction: MomentumCorrection, scale: f32) -> Rule {
    let MomentumCorrection { momentum, nesterov, .. } = correction;
    Rule { momentum, nesterov, scale }
}
