//! What an encode reads of a memory, and what it writes there.
//!
//! The first read puts gradient and memory together and writes into the spare buffers what the memory
//! becomes of entries that are not sent. Those that are sent are put right afterwards, by what the
//! receiver decodes. The buffers become the memory when the state commits.

use super::{Codec, State, Workspace, non_finite};
use crate::memory::{Memory, MomentumCorrection, Residual};
use crate::quantize::{Decoder, Quantizer, ValueCoding};
use crate::scan::{Field, Next, Past, Request, Scanner, Tensor, Totals, Update};
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
        let gradient = Field(input);
        let Some(residual) = &state.residual else { return gradient.into() };
        let residual = residual.as_slice();
        let memory = match (self.memory, &state.momentum) {
            (Memory::Residual(Residual { decay, .. }), _) => Past::Residual { residual, decay },
            (Memory::MomentumCorrection(correction), Some(momentum)) => Past::Momentum {
                momentum: momentum.as_slice(),
                velocity: residual,
                rule: rule(correction, scale),
            },
            _ => Past::Residual { residual, decay: 1.0 },
        };
        Tensor { gradient, memory }
    }

    /// The same after [`Codec::accumulate`], from where it takes the fewest reads.
    pub(super) fn written<'a>(&self, input: Input<'a>, state: &'a State) -> Tensor<'a> {
        match (&state.residual, self.memory) {
            (Some(residual), Memory::Residual(_) | Memory::MomentumCorrection(_)) => {
                Tensor::plain(residual.next())
            }
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

    /// Writes the sums over a residual in one buffer, of which an earlier read has found that all are
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
    pub(super) fn update<'a>(
        &self,
        input: Input<'a>,
        state: &'a mut State,
        scale: f32,
    ) -> Update<'a> {
        let gradient = Field(input);
        let (memory, next) = match (self.memory, &mut state.residual, &mut state.momentum) {
            (Memory::Residual(Residual { decay, .. }), Some(residual), _) => match residual.begin()
            {
                (Some(residual), sums) => {
                    (Past::Residual { residual, decay }, Next::sums(sums, &mut []))
                }
                (None, residual) => (Past::None, Next::InPlace { residual, decay }),
            },
            (Memory::LowPass(filter), Some(memory), _) => {
                let (residual, next) = memory.begin_apart();
                (Past::Residual { residual, decay: 1.0 }, Next::filtered(next, filter))
            }
            (Memory::MomentumCorrection(correction), Some(velocity), Some(momentum)) => {
                let (velocity, sums) = velocity.begin_apart();
                let (momentum, moved) = momentum.begin_apart();
                let rule = rule(correction, scale);
                (Past::Momentum { momentum, velocity, rule }, Next::sums(sums, moved))
            }
            _ => (Past::None, Next::None),
        };
        Update::new(Tensor { gradient, memory }, next)
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

fn rule(correction: MomentumCorrection, scale: f32) -> Rule {
    let MomentumCorrection { momentum, nesterov, .. } = correction;
    Rule { momentum, nesterov, scale }
}
