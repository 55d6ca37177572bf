//! A read of all that is going to be encoded, before anything is written.
//!
//! It costs about as much as half a copy. A scaled quantizer needs it, which has to know the largest
//! magnitude before it rounds the first; so does a slice to write to that must not change on an error.

use super::{Codec, State, non_finite};
use crate::scan::{Request, Scanner};
use crate::simd::peak::NON_FINITE;
use crate::{Input, Result};

impl Codec {
    /// The bits of the largest magnitude of gradient and residual together; an error if that is not
    /// finite.
    pub(super) fn read_ahead(
        &self,
        input: Input<'_>,
        state: &State,
        scale: f32,
        scanner: &mut Scanner,
    ) -> Result<u32> {
        let tensor = self.tensor(input, state, scale);
        match scanner.scan(tensor, &Request::default()).peak {
            NON_FINITE.. => Err(non_finite(&tensor, scanner.kernels)),
            peak => Ok(peak),
        }
    }
}
