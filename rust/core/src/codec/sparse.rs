//! Encoding a selection of the entries.
//!
//! With a residual this is one transaction. The first read adds the gradient to the residual and
//! writes the sum into the spare buffer; what is sent is then subtracted there, as the receiver
//! decodes it; and only when the frame is complete does that buffer become the residual.

use super::{Codec, Encoded, State, Workspace, limit_too_small, non_finite};
use crate::frame::{self, Destination, HEADER_LEN, Layout};
use crate::pack::{IndexCoding, Pattern};
use crate::quantize::{Hints, ValueCoding};
use crate::scan::{Entries, Tensor, Totals};
use crate::simd::peak::NON_FINITE;
use crate::sparsify::{Scanned, Unread, Wanted};
use crate::{Error, Input, Result};

/// How often a frame that is too long is tried again with entries in proportion.
const GUESSES: u32 = 8;

impl Codec {
    pub(super) fn encode_sparse(
        &self,
        input: Input<'_>,
        state: &mut State,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Destination<'_>,
    ) -> Result<Encoded> {
        if let Some(limit) = max_len.filter(|&limit| limit < HEADER_LEN) {
            return Err(limit_too_small(limit, HEADER_LEN));
        }
        workspace.begin();
        let scale = self.scale(input, &mut workspace.scanner)?;
        let mut tracker = state.tracker(self);
        let tensor = self.tensor(input, state, scale);
        let (numel, keys) = (input.len(), &mut workspace.keys);
        self.sparsifier.reserve(numel, keys)?;
        let key = state.selection_key(self.sparsifier.seed().unwrap_or(0));
        let pattern = self.sparsifier.pattern(key);
        let mut unread = Unread { tensor, tracker: &tracker, key, scratch: keys };
        let Wanted { request, thresholds } = self.sparsifier.wanted(&mut unread);
        let unread = request.entries == Entries::Unseen && state.stored_residual().is_none();
        let totals = if unread {
            // The entries drawn are all that is read.
            Totals::default()
        } else {
            self.accumulate(input, state, scale, &request, &mut workspace.scanner)
        };
        workspace.scanner.candidates().check_memory()?;
        let tensor = self.written(input, state);
        if totals.peak >= NON_FINITE {
            return Err(non_finite(&tensor, workspace.scanner.kernels));
        }
        let Workspace { scanner, keys, .. } = workspace;
        let scratch = keys;
        let mut scanned =
            Scanned { tensor, request, thresholds, totals, pattern, scanner, scratch };
        let selected = self.sparsifier.select(&mut tracker, &mut scanned);
        workspace.scanner.candidates().check_memory()?;
        if unread {
            workspace.scanner.candidates().check()?;
        }
        // Its entries may have been read more than once, and then they were finite the first time.
        let reread = !self.memory.facts().becomes_sums || state.residual().is_none();
        let check = |workspace: &Workspace| {
            let changed = reread && workspace.scanner.candidates().check().is_err();
            if changed { Err(Error::Changed) } else { Ok(()) }
        };
        check(workspace)?;
        let hints = self.hints(state, selected.magnitude);
        let layout = self.layout(input, pattern);
        let limit = (max_len, true);
        let (coding, trimmed) = match self.fit(&layout, &tensor, &hints, limit, workspace, out) {
            Err(Error::NonFinite { .. }) if !unread => return Err(Error::Changed),
            fitted => fitted?,
        };
        if trimmed > 0 {
            check(workspace)?;
        }
        let (target, threshold) = (selected.target, selected.threshold);
        let count = workspace.scanner.candidates().len() as u64;
        let nbytes = out.frame().len();
        let encoded = Encoded { nbytes, count, target, threshold, trimmed };
        self.subtract_frame(coding, out.frame(), state, workspace);
        state.commit(self, tracker);
        Ok(encoded)
    }

    /// Leaves out the smallest candidates, or draws fewer, until the frame is no longer than allowed,
    /// and writes it. How many were left out; an error if a frame is too long from which none may be.
    ///
    /// Up to [`GUESSES`] times the entries left are in proportion to the bytes that they may take.
    /// Where a part of the frame does not shrink with its entries, as a bitmap does not, that comes no
    /// nearer, and as many are kept as fit whatever they are: no frame is tried more often than that.
    ///
    /// The candidates are all finite, and the limit is a header at least: a frame of no entries is no
    /// longer. An error if those drawn instead are not.
    pub(super) fn fit(
        &self,
        layout: &Layout,
        tensor: &Tensor<'_>,
        hints: &Hints,
        (max_len, may_trim): (Option<usize>, bool),
        workspace: &mut Workspace,
        out: &mut Destination<'_>,
    ) -> Result<(ValueCoding, u64)> {
        let Workspace { scanner, keys, codes, .. } = workspace;
        let (numel, selected) = (tensor.len() as u64, scanner.candidates().len());
        for tries in 1.. {
            let candidates = scanner.candidates();
            candidates.check_memory()?;
            let (indices, values) = (Some(candidates.indices()), candidates.values());
            let entries = frame::Entries::new(layout, numel, indices, values);
            let (coding, quantizer) = (entries.coding, (layout.quantizer, hints));
            let len = entries.write(scanner.kernels, quantizer, max_len, codes, out)?;
            #[cfg(test)]
            super::tests::TRIES.set(tries);
            let Some(limit) = max_len.filter(|&limit| len > limit) else {
                return Ok((coding, (selected - candidates.len()) as u64));
            };
            if !may_trim {
                return Err(limit_too_small(limit, len));
            }
            let sure = self.surely_fits(layout.pattern, numel, candidates.len() as u64, limit);
            let fewer = if tries > GUESSES || self.indices == IndexCoding::Bitmap {
                sure
            } else {
                let fixed = HEADER_LEN + coding.overhead(numel, 1) as usize;
                let share = limit.saturating_sub(fixed) as f64 / (len - fixed) as f64;
                let guess = (candidates.len() as f64 * share) as usize;
                sure.max(guess.min(candidates.len() - 1) as u64)
            };
            self.sparsifier.leave(fewer, layout.pattern, tensor, scanner, keys);
            if matches!(layout.pattern, Pattern::Drawn(_)) {
                // Fewer positions may be others, which nobody has looked at yet.
                scanner.candidates().check_memory()?;
                scanner.candidates().check()?;
            }
        }
        Err(Error::CalledOff)
    }

    /// The most entries, fewer than `count`, whose frame is no longer than `limit` wherever they are.
    fn surely_fits(&self, pattern: Pattern, numel: u64, count: u64, limit: usize) -> u64 {
        let fits =
            |count| frame::max_len(self.quantizer, self.indices, pattern, numel, count) <= limit;
        // The bound never falls as the count grows; of no entries it is a header.
        let (mut most, mut beyond) = (0, count);
        while beyond - most > 1 {
            let middle = u64::midpoint(most, beyond);
            if fits(middle) { most = middle } else { beyond = middle }
        }
        most
    }
}
