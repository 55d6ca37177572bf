//! Encodes entries at given positions.
//!
//! The positions come from the leader of an exchange, which selects for all ranks, or from a
//! sparsifier outside of this crate. The transaction is the same as for a selection: the values are
//! the sums of gradient and memory, what is sent is subtracted as the receiver decodes it, and the
//! state changes only when nothing can fail any more. What the codec's own sparsifier tracks does not
//! change.

use super::{Codec, Encoded, State, Workspace, limit_too_small, non_finite};
use crate::frame::{Destination, HEADER_LEN};
use crate::scan::Request;
use crate::simd::in_standard_mode;
use crate::simd::peak::NON_FINITE;
use crate::{Error, Input, Result};

/// Positions to encode.
#[derive(Debug, Clone, Copy)]
pub struct Support<'a> {
    /// Strictly ascending, each below the number of elements.
    pub positions: &'a [u32],
    /// Whether the smallest entries may be left out of a frame that is too long, as they are in
    /// [`Codec::encode_into`]; if not, that is an error. Ranks that add up values by position need
    /// the same positions.
    pub may_trim: bool,
}

impl Support<'_> {
    fn check(self, numel: usize) -> Result<()> {
        if let Some(at) = self.positions.windows(2).position(|pair| pair[0] >= pair[1]) {
            let (first, second) = (self.positions[at], self.positions[at + 1]);
            return Err(Error::argument(format!(
                "positions must ascend strictly, got {first} before {second} at index {at}"
            )));
        }
        match self.positions.last() {
            Some(&last) if last as usize >= numel => Err(Error::argument(format!(
                "positions must be below {numel}, the elements of the tensor, got {last}"
            ))),
            _ => Ok(()),
        }
    }
}

impl Codec {
    /// Encodes the entries at given positions, whatever they are, zeros too.
    ///
    /// As [`Codec::encode_into`] in all else. The tensor is read once and the memory written once;
    /// the entries are gathered besides. On any error the state is as before, and so is the chance
    /// to roll back the encode before it where the positions were at fault.
    pub fn encode_at<'o>(
        &self,
        input: Input<'_>,
        state: &mut State,
        support: Support<'_>,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        let out = &mut out.into();
        out.clear();
        self.check_support(support, input.len())?;
        state.prepare(self, input.len())?;
        let encoded = in_standard_mode(|| {
            self.encode_at_them(input, state, support, max_len, workspace, out)
        });
        if encoded.is_err() {
            out.clear();
        }
        encoded
    }

    /// Refuses positions that cannot be encoded.
    fn check_support(&self, support: Support<'_>, numel: usize) -> Result<()> {
        if self.sparsifier.is_dense() {
            return Err(Error::argument("All sends every entry and takes no positions"));
        }
        support.check(numel)
    }

    /// Encodes positions that were checked, with a state that is prepared.
    fn encode_at_them(
        &self,
        input: Input<'_>,
        state: &mut State,
        support: Support<'_>,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Destination<'_>,
    ) -> Result<Encoded> {
        if let Some(limit) = max_len.filter(|&limit| limit < HEADER_LEN) {
            return Err(limit_too_small(limit, HEADER_LEN));
        }
        workspace.begin();
        let scale = self.scale(input, &mut workspace.scanner)?;
        let request = Request::default();
        let totals = self.accumulate(input, state, scale, &request, &mut workspace.scanner);
        workspace.scanner.candidates().check_memory()?;
        let tensor = self.tensor(input, state, scale);
        let candidates = workspace.scanner.candidates_mut();
        candidates.clear();
        for &position in support.positions {
            candidates.push(position, tensor.at(position as usize));
        }
        candidates.check_memory()?;
        if !candidates.values().iter().all(|value| value.is_finite()) {
            return Err(non_finite(&tensor, workspace.scanner.kernels));
        }
        let limit = (max_len, support.may_trim);
        let hints = self.hints(state, None);
        let layout = self.layout(input, self.sparsifier.pattern_of_any());
        if totals.peak >= NON_FINITE {
            // A limit that is too small is named first.
            self.fit(&layout, &tensor, &hints, limit, workspace, &mut (&mut Vec::new()).into())?;
            return Err(non_finite(&self.written(input, state), workspace.scanner.kernels));
        }
        let (coding, trimmed) = self.fit(&layout, &tensor, &hints, limit, workspace, out)?;
        let count = workspace.scanner.candidates().len() as u64;
        let target = Some(support.positions.len() as u64);
        let nbytes = out.frame().len();
        let encoded = Encoded { nbytes, count, target, threshold: 0.0, trimmed };
        let tracker = state.tracker(self);
        self.subtract_frame(coding, out.frame(), state, workspace);
        state.commit(self, tracker);
        Ok(encoded)
    }

    /// What the sparsifier of the next encode of this tensor is going to see: gradient and memory
    /// together. Changes nothing; an error where [`Codec::encode_into`] would find what is not
    /// finite.
    pub fn preview(
        &self,
        input: Input<'_>,
        state: &State,
        workspace: &mut Workspace,
        out: &mut [f32],
    ) -> Result<()> {
        state.check(self, input.len())?;
        if out.len() != input.len() {
            let (given, expected) = (out.len(), input.len());
            return Err(Error::argument(format!(
                "out has {given} elements, the tensor has {expected}"
            )));
        }
        in_standard_mode(|| self.look(input, state, workspace, out))
    }

    fn look(
        &self,
        input: Input<'_>,
        state: &State,
        workspace: &mut Workspace,
        out: &mut [f32],
    ) -> Result<()> {
        let scale = self.scale(input, &mut workspace.scanner)?;
        let (tensor, kernels) = (self.tensor(input, state, scale), workspace.scanner.kernels);
        let mut peak = 0;
        tensor.for_each_block(kernels, |at, block| {
            let out = &mut out[at..at + block.len()];
            out.copy_from_slice(block);
            peak = peak.max(kernels.peak(out));
        });
        if peak >= NON_FINITE { Err(non_finite(&tensor, kernels)) } else { Ok(()) }
    }
}
