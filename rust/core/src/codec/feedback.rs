//! What an encode reads of a memory, and what it writes there.
//!
//! The first read adds gradient and memory and writes what comes of it into the spare buffer; what
//! is sent is then taken out of it again, as the receiver decodes it. The buffer becomes the memory
//! when the state commits.

use super::{Codec, State, Workspace};
use crate::Input;
use crate::memory::Memory;
use crate::quantize::ValueCoding;
use crate::scan::{Accumulated, Field, Preview, Request, Scanner, Totals, View};

impl Codec {
    /// What there is to encode: gradient and memory together, before anything is written.
    pub(super) fn view<'a>(&self, input: Input<'a>, state: &'a State) -> View<'a> {
        let gradient = Field(input);
        match (&state.residual, self.memory) {
            (Some(residual), Memory::Residual { decay, .. }) => {
                View::Sum(Preview { gradient, residual: residual.as_slice(), decay })
            }
            _ => View::Plain(gradient),
        }
    }

    /// The same after [`Codec::accumulate`], from where it takes the fewest reads.
    pub(super) fn written<'a>(&self, input: Input<'a>, state: &'a State) -> View<'a> {
        match &state.residual {
            Some(residual) => View::Plain(Field::plain(residual.next())),
            None => self.view(input, state),
        }
    }

    /// Reads all of it and gathers what is requested; the memory's next values are written meanwhile.
    pub(super) fn accumulate(
        &self,
        input: Input<'_>,
        state: &mut State,
        request: &Request,
        scanner: &mut Scanner,
    ) -> Totals {
        let gradient = Field(input);
        match (&mut state.residual, self.memory) {
            (Some(residual), Memory::Residual { decay, .. }) => {
                let (residual, sum) = residual.begin();
                let mut source = Accumulated::new(gradient, residual, decay, sum);
                // What is read again while it is written has to stay in the cache.
                source.streams &= !request.reads_back();
                match request.bins {
                    Some(bins) => scanner.scan_bins(source, bins),
                    None => scanner.scan(source, request),
                }
            }
            _ => match request.bins {
                Some(bins) => scanner.scan_bins(gradient, bins),
                None => scanner.scan(gradient, request),
            },
        }
    }
}

/// Takes the survivors, as the receiver decodes them from this frame, out of what was written.
pub(super) fn subtract(
    coding: ValueCoding,
    frame: &[u8],
    state: &mut State,
    workspace: &mut Workspace,
) {
    let Some(residual) = &mut state.residual else { return };
    let next = residual.next_mut();
    let Workspace { scanner, rounded, .. } = workspace;
    let (indices, values) = (scanner.survivors().indices(), scanner.survivors().values());
    let (numel, count) = (next.len() as u64, values.len() as u64);
    let section = &frame[frame.len() - coding.value_len(numel, count) as usize..];
    rounded.resize(values.len(), 0.0);
    coding.decode(coding.section(numel, count, section), 0, Some(indices), rounded);
    for ((&index, &value), &sent) in indices.iter().zip(values).zip(&*rounded) {
        next[index as usize] = value - sent;
    }
}
