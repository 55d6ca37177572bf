//! Sends the whole residual.
//!
//! Dryden et al. (MLHPC 2016) add up the residuals of all ranks at the end of an epoch and set them to
//! zero, so that nothing is unsent at an evaluation or a checkpoint.

use half::bf16;

use super::{Codec, Encoded, State};
use crate::frame::{self, Destination, Layout};
use crate::memory::Keeps;
use crate::pack::Pattern;
use crate::quantize::Quantizer;
use crate::scan::Field;
use crate::simd::Kernels;
use crate::sparsify::All;
use crate::{Dtype, Error, Input, Result, allocate};

impl Codec {
    /// Writes the residual to a dense float32 frame. It becomes zero.
    ///
    /// Counts as an encode: a transaction, with a chance to roll back. A momentum becomes zero where entries that are sent lose theirs. An error if the codec
    /// has no memory.
    pub fn flush_into<'o>(
        &self,
        state: &mut State,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        self.write_rest(state, out)?;
        Ok(self.forget_rest(state))
    }

    /// The first half of [`Codec::flush_into`], in which all is that can go wrong: writes the frame.
    /// The state stays as it is, but for the chance to roll back the encode before.
    pub fn write_rest<'o>(&self, state: &mut State, out: impl Into<Destination<'o>>) -> Result<()> {
        let mut out = out.into();
        out.clear();
        let Some(residual) = state.stored_residual() else {
            return Err(Error::argument("the codec has no memory, so there is nothing to flush"));
        };
        if self.memory.facts().keeps == Keeps::Estimate {
            return Err(Error::argument(
                "the codec keeps an estimate, of which nothing waits to be sent: there is nothing to \
                 flush",
            ));
        }
        let numel = residual.len();
        state.prepare(self, numel)?;
        let layout = Layout {
            dtype: Dtype::F32,
            sparsifier: All::ID,
            quantizer: Quantizer::Float32,
            indices: self.indices,
            pattern: Pattern::Any,
        };
        let mut widened = Vec::new();
        let residual = match state.stored_residual() {
            Some(Input::F32(residual)) => residual,
            residual => {
                allocate::resize(&mut widened, numel)?;
                if let Some(residual) = residual {
                    Field(residual).copy(Kernels::current(), 0..numel, &mut widened);
                }
                &widened
            }
        };
        frame::write_into(&layout, numel as u64, None, residual, out)
    }

    /// The second half, right after the first.
    pub fn forget_rest(&self, state: &mut State) -> Encoded {
        if let Some(residual) = &mut state.kept.residual {
            residual.begin().1.fill(0.0);
        }
        if let Some(rounded) = &mut state.kept.rounded {
            rounded.begin().1.fill(bf16::ZERO);
        }
        let masks = self.memory.facts().masks;
        if let Some(moment) = &mut state.kept.moment {
            match moment.begin() {
                (_, next) if masks => next.fill(0.0),
                (kept, next) => next.copy_from_slice(kept),
            }
        }
        if let Some(moment) = &mut state.kept.rounded_moment {
            let (kept, next) = moment.begin();
            next.copy_from_slice(kept);
        }
        let tracker = state.tracker(self);
        state.take_over(self, tracker);
        let nbytes = frame::dense_len(Quantizer::Float32, state.numel() as u64);
        Encoded { nbytes, count: state.numel() as u64, target: None, threshold: 0.0, trimmed: 0 }
    }
}
