//! Encoding a selection of the entries.
//!
//! With a residual this is one transaction. The first read adds the gradient to the residual and
//! writes the sum into the spare buffer; what is sent is then subtracted there, as the receiver
//! decodes it; and only when the frame is complete does that buffer become the residual.
//!
//! Where there is no spare buffer the sum takes the place of the residual. All that can go wrong is
//! then found before: a limit that no frame keeps, and, by a read that writes nothing, sums that are
//! not finite.

use super::{Codec, Encoded, State, Workspace, limit_too_small, non_finite};
use crate::frame::{self, HEADER_LEN};
use crate::memory::{Memory, Residual};
use crate::scan::{Accumulated, Field, Request, Survivors, Totals, View};
use crate::simd::peak::NON_FINITE;
use crate::sparsify::{Scanned, Tracker, narrow};
use crate::{Input, Result};

impl Codec {
    pub(super) fn encode_sparse(
        &self,
        input: Input<'_>,
        state: &mut State,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Vec<u8>,
    ) -> Result<Encoded> {
        if let Some(limit) = max_len.filter(|&limit| limit < HEADER_LEN) {
            return Err(limit_too_small(limit, HEADER_LEN));
        }
        if state.is_in_place() {
            self.read_ahead(input, state, &mut workspace.scanner)?;
        }
        let mut tracker = state.tracker.clone();
        let (request, totals) = self.accumulate(input, state, &tracker, workspace);
        let field = match &state.residual {
            Some(residual) => View::Plain(Field::plain(residual.next())),
            None => View::Plain(Field(input)),
        };
        if totals.peak >= NON_FINITE {
            return Err(non_finite(&field, workspace.scanner.kernels));
        }
        let Workspace { scanner, keys, .. } = workspace;
        let mut scanned = Scanned { field, request, totals, scanner, scratch: keys };
        let selected = self.sparsifier.select(&mut tracker, &mut scanned);
        let trimmed = self.fit(input, max_len, workspace, out)?;
        let survivors = workspace.scanner.survivors();
        if let Some(residual) = &mut state.residual {
            self.subtract(survivors, &mut workspace.rounded, residual);
        }
        state.commit(tracker);
        let (target, threshold) = (selected.target, selected.threshold);
        Ok(Encoded { count: survivors.len() as u64, target, threshold, trimmed })
    }

    /// The first read: adds the residual, if there is one, and gathers what the sparsifier wants.
    fn accumulate(
        &self,
        input: Input<'_>,
        state: &mut State,
        tracker: &Tracker,
        workspace: &mut Workspace,
    ) -> (Request, Totals) {
        let gradient = Field(input);
        let (sparsifier, numel) = (self.sparsifier, input.len());
        let Workspace { scanner, keys, .. } = workspace;
        if let (Some(residual), Memory::Residual { decay, .. }) = (&mut state.residual, self.memory)
        {
            let (residual, sum) = residual.begin();
            let mut source = Accumulated::new(gradient, residual, decay, sum);
            let preview = source.preview();
            let request = sparsifier.request(numel, tracker, |i| preview.at(i), keys);
            // Logarithms are taken of what was written: it has to stay in the cache.
            source.streams &= !request.logs;
            (request, scanner.scan(source, &request))
        } else {
            let request = sparsifier.request(numel, tracker, |i| gradient.at(i), keys);
            (request, scanner.scan(gradient, &request))
        }
    }

    /// Takes what is sent, as the receiver decodes it, out of the sum that will be the residual.
    fn subtract(&self, survivors: &Survivors, rounded: &mut Vec<f32>, residual: &mut Residual) {
        let values = survivors.values();
        rounded.resize(values.len(), 0.0);
        self.quantizer.round_into(self.quantizer.scale_exponent(values), values, rounded);
        let next = residual.next_mut();
        for ((&index, &value), &sent) in survivors.indices().iter().zip(values).zip(&*rounded) {
            next[index as usize] = value - sent;
        }
    }

    /// Writes the frame; where it is longer than allowed, leaves out the smallest survivors until
    /// it is not. How many were left out.
    ///
    /// Does not fail on survivors of a scan that found all finite, and a limit of a header at least:
    /// a frame of no entries is no longer.
    fn fit(
        &self,
        input: Input<'_>,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Vec<u8>,
    ) -> Result<u64> {
        let Workspace { scanner, keys, .. } = workspace;
        let (kernels, survivors) = (scanner.kernels, scanner.survivors_mut());
        let (layout, numel, selected) = (self.layout(input), input.len() as u64, survivors.len());
        loop {
            frame::write_into(&layout, numel, Some(survivors.indices()), survivors.values(), out)?;
            let Some(limit) = max_len.filter(|&limit| out.len() > limit) else {
                return Ok((selected - survivors.len()) as u64);
            };
            // In proportion to the bytes there are, and one less, so that this ends.
            let room = limit.saturating_sub(HEADER_LEN) as f64 / (out.len() - HEADER_LEN) as f64;
            let fewer = (survivors.len() as f64 * room) as usize;
            narrow(survivors, fewer.min(survivors.len() - 1) as u64, kernels, keys);
        }
    }
}
