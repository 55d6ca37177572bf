//! Codecs, composed of a sparsifier, a quantizer, a memory and an index coding.
//!
//! A [`Codec`] is immutable. What changes from step to step is in one [`State`] per tensor, scratch
//! memory in one [`Workspace`] per thread.

mod ahead;
mod dense;
mod feedback;
mod flush;
mod given;
pub mod outside;
mod sparse;
mod state;
mod totals;
mod workspace;

pub use given::Support;
pub use state::State;
pub use workspace::Workspace;

use crate::frame::{self, Destination, Layout};
use crate::memory::{Keeps, Memory};
use crate::pack::{IndexCoding, MAX_NUMEL, Pattern};
use crate::quantize::{Grouping, Hints, Quantizer};
use crate::rng::Key;
use crate::scan::Tensor;
use crate::simd::{Kernels, in_standard_mode};
use crate::sparsify::{Drawn, Positions, Route, Sparsifier};
use crate::{Error, Input, Result};

/// Encodes tensors as frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codec {
    sparsifier: Sparsifier,
    quantizer: Quantizer,
    memory: Memory,
    indices: IndexCoding,
}

/// The results of an encode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Encoded {
    /// Bytes of the frame.
    pub nbytes: usize,
    /// Entries in the frame.
    pub count: u64,
    /// Entries that the sparsifier aimed for, if it aims for a number.
    pub target: Option<u64>,
    /// Entries up to this magnitude were left out (some of exactly this magnitude may be in).
    pub threshold: f32,
    /// Entries that were selected but left out because of the frame's limit.
    pub trimmed: u64,
}

impl Codec {
    /// Composes a codec of these parts.
    pub fn new(
        sparsifier: Sparsifier,
        quantizer: Quantizer,
        memory: Memory,
        indices: IndexCoding,
    ) -> Result<Self> {
        sparsifier.check()?;
        memory.check()?;
        quantizer.check()?;
        check_pair(sparsifier, memory)?;
        check_magnitude(sparsifier, quantizer)?;
        Ok(Self { sparsifier, quantizer, memory, indices })
    }

    /// Which entries are sent.
    pub fn sparsifier(&self) -> Sparsifier {
        self.sparsifier
    }

    /// How their values are coded.
    pub fn quantizer(&self) -> Quantizer {
        self.quantizer
    }

    /// What happens to everything that is not sent.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// How positions are coded.
    pub fn indices(&self) -> IndexCoding {
        self.indices
    }

    /// Entries at whose multiples a tensor of `numel` of them is best cut into ranges: those of a group
    /// that shares scales, where positions tell them; one where any cut is as good.
    pub fn cut_step(&self, numel: usize) -> usize {
        match self.quantizer.coding(numel as u64, 0.0).grouping() {
            Grouping::Positions(len) => len as usize,
            Grouping::Ranks(len) if self.sparsifier.is_dense() => len as usize,
            _ => 1,
        }
    }

    /// Whether two codecs differ at most in how much they send, of the same values: a state of one may be
    /// used with the other.
    pub fn same_kind(&self, other: &Self) -> bool {
        self.sparsifier.same_kind(other.sparsifier)
            && self.quantizer.plain().same_kind(other.quantizer.plain())
            && self.memory.same_kind(other.memory)
            && self.indices == other.indices
    }

    /// Creates the state of a tensor of `numel` elements. With a memory it takes eight bytes per
    /// element: four in bfloat16, and twice as many where a moment is kept beside the residual.
    pub fn init_state(&self, numel: usize) -> Result<State> {
        if numel as u64 > MAX_NUMEL {
            return Err(Error::argument(format!(
                "a tensor has at most {MAX_NUMEL} elements, got {numel}: split it"
            )));
        }
        State::new(self, numel)
    }

    /// The longest frame that [`Codec::encode_into`] makes of a tensor of `numel` elements, in bytes.
    pub fn max_encoded_len(&self, numel: usize) -> usize {
        in_standard_mode(|| {
            // The key does not matter to the length.
            let pattern = self.sparsifier.pattern(Key::from_bits(0));
            self.longest(numel, self.sparsifier.max_count(numel), pattern)
        })
    }

    /// The longest frame of at most `count` entries of a tensor of `numel` elements, in bytes, at
    /// whatever positions: [`Codec::encode_at`] may be given others than the sparsifier would choose.
    pub fn max_len_of(&self, numel: usize, count: u64) -> usize {
        in_standard_mode(|| self.longest(numel, count, self.sparsifier.pattern_of_any()))
    }

    fn longest(&self, numel: usize, count: u64, pattern: Pattern) -> usize {
        match self.sparsifier.route() {
            Route::Every => frame::dense_len(self.quantizer, numel as u64),
            Route::Selected | Route::Given => {
                frame::max_len(self.quantizer, self.indices, pattern, numel as u64, count)
            }
        }
    }

    /// Encodes a tensor into a frame of at most `max_len` bytes.
    ///
    /// If the frame would be longer, the smallest selected entries are left out and stay in the
    /// residual. On an error the state does not change (but the encode before it can no longer be
    /// rolled back), a vector is empty, and a slice as it was, unless that is [`Destination::unspared`].
    pub fn encode_into<'o>(
        &self,
        input: Input<'_>,
        state: &mut State,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        let out = &mut out.into();
        let encoded = state
            .prepare(self, input.len())
            .and_then(|()| self.encode_by_route(input, state, max_len, workspace, out));
        if encoded.is_err() {
            out.clear();
        }
        encoded
    }

    fn encode_by_route(
        &self,
        input: Input<'_>,
        state: &mut State,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: &mut Destination<'_>,
    ) -> Result<Encoded> {
        match self.sparsifier.route() {
            Route::Every => {
                in_standard_mode(|| self.encode_dense(input, state, max_len, workspace, out))
            }
            Route::Given => Err(Error::argument(
                "a custom sparsifier selects its entries outside of this crate: pass their \
                 positions to encode_at",
            )),
            Route::Selected => {
                in_standard_mode(|| self.encode_sparse(input, state, max_len, workspace, out))
            }
        }
    }

    /// What the quantizer is told of this step besides the values.
    fn hints(&self, state: &State, magnitude: Option<f32>) -> Hints {
        let seed = self.quantizer.seed();
        Hints { key: seed.map(|seed| state.rounding_key(seed)), magnitude }
    }

    fn layout(&self, input: Input<'_>, pattern: Pattern) -> Layout {
        Layout {
            dtype: input.dtype(),
            sparsifier: self.sparsifier.id(),
            quantizer: self.quantizer.of(input.dtype()),
            indices: self.indices,
            pattern,
        }
    }
}

/// Refuses combinations that could be computed but make no sense.
fn check_pair(sparsifier: Sparsifier, memory: Memory) -> Result<()> {
    if sparsifier.is_dense() && memory.facts().masks {
        return Err(Error::argument(
            "momentum correction with masking needs a sparsifier that leaves out entries: if every \
             entry is sent, masking sets the momentum to zero in each step; turn masking off, or \
             leave momentum to the optimizer",
        ));
    }
    let scaled = matches!(sparsifier.positions(), Positions::Drawn(Drawn { scaled: true, .. }));
    if scaled && memory.facts().keeps != Keeps::Nothing {
        return Err(Error::argument(
            "scaled random-k cannot have a memory: values times n / k are already an unbiased \
             estimate of the input, and a memory would add the entries that are left out a second \
             time; turn scaled off, or use no memory",
        ));
    }
    Ok(())
}

/// Refuses a quantizer that takes a magnitude from a sparsifier without one.
fn check_magnitude(sparsifier: Sparsifier, quantizer: Quantizer) -> Result<()> {
    if quantizer.needs_magnitude() && !sparsifier.tells_magnitude() {
        return Err(Error::argument(
            "the sparsifier does not determine a magnitude of its entries; send their mean instead",
        ));
    }
    Ok(())
}

/// The error for a tensor in which a scan found something that is not finite. Where there is nothing
/// any more, somebody has written to it meanwhile.
fn non_finite(tensor: &Tensor<'_>, kernels: &'static Kernels) -> Error {
    let (mut count, mut first) = (0, None);
    tensor.for_each_block(kernels, |at, block| {
        for (i, value) in block.iter().enumerate() {
            if !value.is_finite() {
                count += 1;
                first = first.or(Some((at + i) as u64));
            }
        }
    });
    first.map_or(Error::Changed, |first| Error::NonFinite { count, first })
}

/// The error for a limit that not even the smallest frame keeps.
fn limit_too_small(limit: usize, need: usize) -> Error {
    Error::LimitTooSmall { limit: limit as u64, need: need as u64 }
}

#[cfg(test)]
mod tests;
