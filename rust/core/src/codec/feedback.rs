//! What an encode reads of a memory, and what it writes there.
//!
//! The first read puts gradient and memory together and writes into the spare buffers what the memory
//! becomes of entries that are not sent. Those that are sent are put right afterwards, by what the
//! receiver decodes. The buffers become the memory when the state commits.

use super::{Codec, State, Workspace, non_finite};
use crate::memory::{Keeps, Kept};
use crate::quantize::{Decoder, Section, ValueCoding};
use crate::scan::{Field, Request, Scanner, Tensor, Totals, Update};
use crate::simd::peak::NON_FINITE;
use crate::simd::{BLOCK, normal_or_zero};
use crate::{Input, Result};

impl Codec {
    /// What the gradient is multiplied by before all else: 1, unless its norm is to be clipped.
    pub(super) fn scale(&self, input: Input<'_>, scanner: &mut Scanner) -> Result<f32> {
        let Some(clip) = self.memory.facts().clip else { return Ok(1.0) };
        let gradient = Field(input).into();
        let totals = scanner.scan(gradient, &Request::moments(0.0));
        if totals.peak >= NON_FINITE {
            return Err(non_finite(&gradient, scanner.kernels));
        }
        let norm = libm::sqrt(totals.moments.sum_sq);
        let clip = f64::from(clip);
        Ok(if norm > clip { (clip / norm) as f32 } else { 1.0 })
    }

    /// What there is to encode: gradient and memory together, before anything is written.
    pub(super) fn tensor<'a>(&self, input: Input<'a>, state: &'a State, scale: f32) -> Tensor<'a> {
        self.memory.tensor(Field(input), &state.kept, scale)
    }

    /// The same after [`Codec::accumulate`], from where it takes the fewest reads.
    pub(super) fn written<'a>(&self, input: Input<'a>, state: &'a State) -> Tensor<'a> {
        match &state.kept.residual {
            Some(residual) if self.memory.facts().becomes_sums => Tensor::plain(residual.next()),
            _ => self.tensor(input, state, 1.0),
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
        scanner.read(self.update(input, state, scale), request)
    }

    /// What the first read reads and writes.
    pub(super) fn update<'a>(
        &self,
        input: Input<'a>,
        state: &'a mut State,
        scale: f32,
    ) -> Update<'a> {
        self.memory.update(Field(input), &mut state.kept, scale)
    }

    /// As [`Codec::subtract`], of the frame that was just written: it ends with the values in this coding,
    /// or the same frame before they were put into blocks does.
    pub(super) fn subtract_frame(
        &self,
        coding: ValueCoding,
        frame: &[u8],
        state: &mut State,
        workspace: &Workspace,
    ) {
        let (numel, count) = (state.numel() as u64, workspace.scanner.candidates().len() as u64);
        let plain = &workspace.codes.frame;
        let frame = if plain.is_empty() { frame } else { plain };
        let section = &frame[frame.len() - coding.value_len(numel, count) as usize..];
        self.subtract((coding, coding.section(numel, count, section)), state, workspace);
    }

    /// Puts right what the memory becomes of the candidates, which the receiver decodes from this.
    pub(super) fn subtract(
        &self,
        (coding, section): (ValueCoding, Section<'_>),
        state: &mut State,
        workspace: &Workspace,
    ) {
        if state.kept.keeps() == Keeps::Nothing {
            return;
        }
        let candidates = workspace.scanner.candidates();
        let (indices, values) = (candidates.indices(), candidates.values());
        let Kept { residual, moment, .. } = &mut state.kept;
        if let Some(momentum) = moment.as_mut().filter(|_| self.memory.facts().masks) {
            let moved = momentum.next_mut();
            for &index in indices {
                moved[index as usize] = 0.0;
            }
        }
        if self.quantizer.is_exact() && self.memory.facts().becomes_sums {
            match residual {
                None => state.kept.forget_rounded(indices),
                Some(residual) => {
                    let next = residual.next_mut();
                    for &index in indices {
                        next[index as usize] = 0.0;
                    }
                }
            }
            return;
        }
        // By blocks, so that what was decoded is still in the cache.
        let (mut decoder, mut sent) =
            (Decoder::new(workspace.kernels(), coding, section), [0.0; BLOCK]);
        let blocks = indices.chunks(BLOCK).zip(values.chunks(BLOCK));
        for (block, (indices, values)) in blocks.enumerate() {
            let sent = &mut sent[..values.len()];
            decoder.decode(block * BLOCK, Some(indices), sent);
            let entries = indices.iter().zip(values).zip(&*sent);
            let entries = entries.map(|((&index, &value), &sent)| (index as usize, value, sent));
            match &mut state.kept.residual {
                None => state.kept.put_rounded(self.memory, entries),
                Some(residual) if self.memory.facts().becomes_sums => {
                    let next = residual.next_mut();
                    entries.for_each(|(i, value, sent)| next[i] = normal_or_zero(value - sent));
                }
                // What is next is still what was kept, and it has to be read in any case.
                Some(residual) if self.memory.facts().keeps == Keeps::Estimate => {
                    let next = residual.next_mut();
                    entries.for_each(|(i, value, sent)| {
                        next[i] = self.memory.left(next[i], value, sent);
                    });
                }
                Some(residual) => {
                    let (kept, next) = residual.begin();
                    entries.for_each(|(i, value, sent)| {
                        next[i] = self.memory.left(kept[i], value, sent);
                    });
                }
            }
        }
    }
}
