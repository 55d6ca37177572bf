//! Encodes the gradients of a bucket.

use std::ops::Range;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use crate::codec::outside::CodeValues;
use crate::codec::{Codec, Encoded, State, Support, Workspace};
use crate::frame::Destination;
use crate::scan::Field;
use crate::simd::{Kernels, in_standard_mode};
use crate::{Error, Input, Result, allocate};

/// One tensor of a bucket, and how it is encoded.
pub struct Piece<'a> {
    /// How it is encoded.
    pub codec: &'a Codec,
    /// The state of the tensor.
    pub state: &'a mut State,
    /// Where its entries are in the bucket.
    pub range: Range<usize>,
    /// Positions that were selected elsewhere; with `None` the codec selects.
    pub support: Option<Support<'a>>,
    /// Maximum size of its frame in bytes.
    pub limit: usize,
    /// What codes its values outside of this crate.
    pub coder: Option<&'a mut dyn CodeValues>,
}

/// The results of encoding one piece.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The results of the encode.
    pub encoded: Encoded,
    /// Whether every entry of the input was zero.
    pub zero: bool,
    /// How long it took.
    pub elapsed: Duration,
}

/// Encodes the pieces of a bucket in their order, and writes the frames one after another into
/// `out`. Entries are divided by `scale` first, in float32, if it is not 1.
///
/// Stops at the first piece that cannot be encoded. The states of all pieces before it have advanced.
/// `outcomes` then has one entry for each of these pieces, and the caller undoes or keeps them.
pub fn encode(
    input: Input<'_>,
    scale: f32,
    pieces: &mut [Piece<'_>],
    scratch: &mut Scratch,
    out: &mut [u8],
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    scratch.workspace.follow();
    in_standard_mode(|| encode_pieces(input, scale, pieces, scratch, out, outcomes))
}

fn encode_pieces(
    input: Input<'_>,
    scale: f32,
    pieces: &mut [Piece<'_>],
    scratch: &mut Scratch,
    out: &mut [u8],
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    outcomes.clear();
    let mut at = 0;
    for piece in pieces {
        let start = Instant::now();
        let own = part(input, &piece.range)?;
        let encoded = scratch.encode(own, scale, piece, &mut out[at..])?;
        at += encoded.nbytes;
        outcomes.push(Outcome { encoded, zero: is_zero(own), elapsed: start.elapsed() });
    }
    Ok(())
}

/// Memory for encoding buckets, to be used again: no call allocates once it has grown.
#[derive(Debug, Default)]
pub struct Scratch {
    workspace: Workspace,
    /// A piece in float32, divided by the scale.
    unscaled: Vec<f32>,
}

impl Scratch {
    fn encode(
        &mut self,
        input: Input<'_>,
        scale: f32,
        piece: &mut Piece<'_>,
        out: &mut [u8],
    ) -> Result<Encoded> {
        let Self { workspace, unscaled } = self;
        let input = divide(input, scale, workspace.kernels(), unscaled)?;
        let Piece { codec, state, support, limit, coder, .. } = piece;
        let (limit, out) = (Some(*limit), Destination::unspared(out));
        match (*support, coder) {
            (support, Some(coder)) => {
                codec.encode_outside(input, state, support, limit, *coder, workspace, out)
            }
            (None, None) => codec.encode_into(input, state, limit, workspace, out),
            (Some(support), None) => codec.encode_at(input, state, support, limit, workspace, out),
        }
    }
}

/// A part of a bucket.
fn part<'a>(input: Input<'a>, range: &Range<usize>) -> Result<Input<'a>> {
    let (Range { start, end }, len) = (range.clone(), input.len());
    if start > end || end > len {
        return Err(Error::argument(format!(
            "a piece has entries {start} to {end}, the bucket {len}"
        )));
    }
    Ok(input.range(start..end))
}

/// The quotients of entries and a scale, in float32; the entries themselves if the scale is 1.
fn divide<'a>(
    input: Input<'a>,
    scale: f32,
    kernels: &'static Kernels,
    quotients: &'a mut Vec<f32>,
) -> Result<Input<'a>> {
    #[allow(clippy::float_cmp, reason = "only exactly 1 changes nothing")]
    if scale == 1.0 {
        return Ok(input);
    }
    quotients.clear();
    allocate::resize(quotients, input.len())?;
    // Made float32 first: small float16 gradients would vanish the other way round.
    Field(input).copy(kernels, 0..input.len(), quotients);
    for value in &mut *quotients {
        *value /= scale;
    }
    Ok(Input::F32(quotients))
}

/// Whether every entry is a zero of either sign. Nearly always the first few entries tell.
fn is_zero(input: Input<'_>) -> bool {
    /// Entries that are looked at together, without a branch for each.
    const STEP: usize = 64;
    fn all<T: Copy>(x: &[T], is_zero: impl Fn(T) -> bool) -> bool {
        x.chunks(STEP).all(|block| block.iter().fold(true, |all, &value| all & is_zero(value)))
    }
    match input {
        Input::F32(x) => all(x, |value| value == 0.0),
        Input::F64(x) => all(x, |value| value == 0.0),
        Input::F16(x) => all(x, |value: f16| value.to_bits() << 1 == 0),
        Input::BF16(x) => all(x, |value: bf16| value.to_bits() << 1 == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, at_level, level};

    #[test]
    fn memory_that_is_used_again_follows_the_level_in_use() {
        let (mut scratch, usual) = (Scratch::default(), level());
        let mut run = || {
            encode(Input::F32(&[]), 1.0, &mut [], &mut scratch, &mut [], &mut Vec::new()).unwrap();
            scratch.workspace.kernels().level()
        };
        assert_eq!(run(), usual);
        assert_eq!(at_level(Level::Scalar, &mut run), Some(Level::Scalar));
        assert_eq!(run(), usual);
    }
}
