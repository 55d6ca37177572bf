//! What an encode reads of a memory, and what it writes there.
//!
//! The first read adds gradient and memory and writes what comes of it into the spare buffer; what
//! is sent is then taken out of it again, as the receiver decodes it. The buffer becomes the memory
//! when the state commits.

use super::{Codec, State, Workspace};
use crate::Input;
use crate::memory::Memory;
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

    /// Takes the survivors, as the receiver decodes them, out of what was written.
    pub(super) fn subtract(&self, state: &mut State, workspace: &mut Workspace) {
        let Some(residual) = &mut state.residual else { return };
        let Workspace { scanner, rounded, .. } = workspace;
        let (indices, values) = (scanner.survivors().indices(), scanner.survivors().values());
        rounded.resize(values.len(), 0.0);
        self.quantizer.round_into(self.quantizer.scale_exponent(values), values, rounded);
        let next = residual.next_mut();
        for ((&index, &value), &sent) in indices.iter().zip(values).zip(&*rounded) {
            next[index as usize] = value - sent;
        }
    }
}
