//! A read of all that is going to be encoded, before anything is written.
//!
//! It costs about as much as half a copy. A residual in one buffer needs it, because nothing may
//! fail once that is being overwritten; so does a scaled quantizer, which has to know the largest
//! magnitude before it rounds the first.

use super::{Codec, State, non_finite};
use crate::memory::Memory;
use crate::scan::{Field, Preview, Request, Scanner, Source};
use crate::simd::peak::NON_FINITE;
use crate::{Input, Result};

impl Codec {
    /// The bits of the largest magnitude of gradient and residual together; an error if that is not
    /// finite.
    pub(super) fn read_ahead(
        &self,
        input: Input<'_>,
        state: &State,
        scanner: &mut Scanner,
    ) -> Result<u32> {
        let gradient = Field(input);
        match (&state.residual, self.memory) {
            (Some(residual), Memory::Residual { decay, .. }) => {
                finite_peak(Preview { gradient, residual: residual.as_slice(), decay }, scanner)
            }
            _ => finite_peak(gradient, scanner),
        }
    }
}

fn finite_peak<S: Source + Copy>(source: S, scanner: &mut Scanner) -> Result<u32> {
    let peak = scanner.scan(source, &Request::default()).peak;
    if peak >= NON_FINITE { Err(non_finite(&source, scanner.kernels)) } else { Ok(peak) }
}
