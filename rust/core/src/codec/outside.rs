//! Encoding with sections that are coded outside of this crate.
//!
//! The codec itself codes positions and values exactly: its frame carries them to whoever codes them
//! outside. What comes back takes their place in the frame, and what a receiver will decode is then
//! put right in the memory, as if it had been coded here. On any error the encode is undone.

use super::{Codec, Encoded, State, Support, Workspace, limit_too_small};
use crate::frame::outside::{Coded, Indices, Values, check_values_given, head_len, reframe};
use crate::frame::{Destination, Frame, HEADER_LEN};
use crate::quantize::Quantizer;
use crate::simd::{in_standard_mode, normal_or_zero};
use crate::{Error, Input, Result};

/// How often a frame that is too long is made again with entries in proportion.
const GUESSES: u32 = 8;

/// Codes values.
pub trait CodeValues: Send {
    /// Its name, as [`is_name`](crate::frame::outside::is_name) has it.
    fn name(&self) -> &str;

    /// The most bytes of `count` values or fewer.
    fn max_len(&mut self, count: u64) -> Result<usize>;

    /// Replaces what `data` holds by a code of the values, and what `decoded` holds by the values that
    /// a receiver will make of it: as many, all finite.
    fn encode(&mut self, values: &[f32], data: &mut Vec<u8>, decoded: &mut Vec<f32>) -> Result<()>;
}

/// Codes positions.
pub trait CodeIndices: Send {
    /// Its name, as [`is_name`](crate::frame::outside::is_name) has it.
    fn name(&self) -> &str;

    /// The most bytes of `count` positions or fewer below `numel`.
    fn max_len(&mut self, numel: u64, count: u64) -> Result<usize>;

    /// Replaces what `data` holds by a code of strictly ascending positions below `numel`, which a
    /// receiver will make the same positions of.
    fn encode(&mut self, positions: &[u32], numel: u64, data: &mut Vec<u8>) -> Result<()>;
}

/// What is coded outside; the codec codes the rest. With values, its quantizer is
/// [`Quantizer::Float32`].
#[derive(Default)]
pub struct Coders<'a> {
    /// What codes the positions.
    pub indices: Option<&'a mut dyn CodeIndices>,
    /// What codes the values.
    pub values: Option<&'a mut dyn CodeValues>,
}

impl Coders<'_> {
    /// Whether nothing is.
    pub fn is_none(&self) -> bool {
        self.indices.is_none() && self.values.is_none()
    }
}

/// A frame on its way: exact, and what was made of its values.
#[derive(Default)]
struct Carried {
    frame: Vec<u8>,
    positions: Vec<u32>,
    values: Vec<f32>,
    data: Vec<u8>,
    index_data: Vec<u8>,
    decoded: Vec<f32>,
}

impl Codec {
    /// As [`Codec::encode_into`], or with positions [`Codec::encode_at`], with sections that are coded
    /// outside.
    ///
    /// A frame that is too long is made again with fewer entries. Costs an exact frame besides.
    #[allow(clippy::too_many_arguments, reason = "those of an encode, and two that are its own")]
    pub fn encode_outside<'o>(
        &self,
        input: Input<'_>,
        state: &mut State,
        support: Option<Support<'_>>,
        max_len: Option<usize>,
        coders: &mut Coders<'_>,
        workspace: &mut Workspace,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        let out = &mut out.into();
        if coders.values.is_some() && self.quantizer != Quantizer::Float32 {
            return Err(Error::argument("values that are coded outside are carried as float32"));
        }
        out.clear();
        if let Some(limit) = max_len.filter(|&limit| limit < HEADER_LEN) {
            return Err(limit_too_small(limit, HEADER_LEN));
        }
        let mut carried = Carried::default();
        let mut most = None;
        for tries in 0.. {
            let frame = &mut carried.frame;
            let encoded = match support {
                None => self.encode_into(input, state, most, workspace, frame)?,
                Some(support) => self.encode_at(input, state, support, most, workspace, frame)?,
            };
            let need = match recode(coders, &mut carried, max_len, out) {
                Ok(need) => need,
                Err(error) => {
                    state.rollback()?;
                    out.clear();
                    return Err(error);
                }
            };
            let Some(limit) = max_len.filter(|&limit| need > limit) else {
                if coders.values.is_some() {
                    in_standard_mode(|| self.keep_rest(&carried, state));
                }
                return Ok(Encoded { nbytes: need, ..encoded });
            };
            state.rollback()?;
            let may_trim = support.is_none_or(|support| support.may_trim);
            if self.sparsifier.is_dense() || !may_trim {
                out.clear();
                return Err(limit_too_small(limit, need));
            }
            if tries > GUESSES {
                out.clear();
                let reason = "what codes a section outside takes more than its bound";
                return Err(Error::Coder { reason: reason.to_owned() });
            }
            most = Some(self.smaller(tries, carried.frame.len(), need, limit, input, coders)?);
        }
        Err(Error::CalledOff)
    }

    /// The longest frame of `count` entries or fewer, in bytes; without a count of those selected.
    pub fn max_len_outside(
        &self,
        numel: usize,
        count: Option<u64>,
        coders: &mut Coders<'_>,
    ) -> Result<usize> {
        let most = count.unwrap_or_else(|| in_standard_mode(|| self.sparsifier.max_count(numel)));
        let (whole, count) = (numel as u64, most.min(numel as u64));
        let own = |count| self.quantizer.coding(whole, 0.0).value_len(whole, count) as usize;
        let values = match &mut coders.values {
            None => own(count),
            Some(_) if count == 0 => 0,
            Some(coder) => head_len(coder.name()) + coder.max_len(count)?,
        };
        let indices = match &mut coders.indices {
            _ if count == 0 || self.sparsifier.is_dense() => 0,
            Some(coder) => head_len(coder.name()) + coder.max_len(whole, count)?,
            // The full support takes no bytes, so that an entry less may take more.
            None => {
                self.max_len_of(numel, count).max(self.max_len_of(numel, count - 1))
                    - HEADER_LEN
                    - own(count - 1).min(own(count))
            }
        };
        Ok(HEADER_LEN + indices + values)
    }

    /// Puts right what the memory becomes of entries that are decoded as something else.
    fn keep_rest(&self, carried: &Carried, state: &mut State) {
        let entries = carried.positions.iter().zip(&carried.values).zip(&carried.decoded);
        let left = entries
            .map(|((&position, &value), &sent)| (position as usize, normal_or_zero(value - sent)));
        state.kept.amend(self.memory, left);
    }

    /// The room for the next exact frame, where one of `have` bytes came out as `need` and may have
    /// `limit`: in proportion, or after some tries so much that no frame can be too long.
    fn smaller(
        &self,
        tries: u32,
        have: usize,
        need: usize,
        limit: usize,
        input: Input<'_>,
        coders: &mut Coders<'_>,
    ) -> Result<usize> {
        if tries + 1 < GUESSES {
            // What does not shrink with the entries.
            let indices = coders.indices.as_ref().map_or(0, |coder| head_len(coder.name()));
            let values = coders.values.as_ref().map_or(0, |coder| head_len(coder.name()));
            let fixed = HEADER_LEN + indices + values;
            let rest = need.saturating_sub(fixed).max(1);
            let share = limit.saturating_sub(fixed) as f64 / rest as f64;
            let capacity = (have - HEADER_LEN) as f64 * share;
            let slack = 4 * tries as usize;
            return Ok(
                HEADER_LEN + (capacity as usize).saturating_sub(slack).min(have - HEADER_LEN - 1)
            );
        }
        let numel = input.len();
        let (mut most, mut beyond) = (0, numel as u64);
        while beyond - most > 1 {
            let middle = u64::midpoint(most, beyond);
            let fits = self.max_len_outside(numel, Some(middle), coders)? <= limit;
            if fits { most = middle } else { beyond = middle }
        }
        // One entry more does not fit into this, wherever it is.
        let coding = self.quantizer.coding(numel as u64, 0.0);
        Ok(HEADER_LEN + coding.value_len(numel as u64, most + 1) as usize - 1)
    }
}

/// Has the sections coded, and the frame written with them if it may be as long; its length.
fn recode(
    coders: &mut Coders<'_>,
    carried: &mut Carried,
    max_len: Option<usize>,
    out: &mut Destination<'_>,
) -> Result<usize> {
    let Carried { frame, positions, values, data, index_data, decoded } = carried;
    let frame = Frame::parse_again(frame, None)?;
    let (numel, count) = (frame.header().numel, frame.header().count);
    frame.indices_into(positions)?;
    let (mut new_indices, mut new_values) = (Indices::Same, Values::Same);
    if let Some(coder) = &mut coders.indices
        && count > 0
        && count < numel
    {
        coder.encode(positions, numel, index_data)?;
        bounded(index_data.len(), coder.max_len(numel, count)?)?;
        new_indices = Indices::Coded(Coded { name: coder.name(), data: index_data });
    }
    if let Some(coder) = &mut coders.values {
        frame.values_into(values)?;
        decoded.clear();
        if count > 0 {
            coder.encode(values, data, decoded)?;
            bounded(data.len(), coder.max_len(count)?)?;
            new_values = Values::Coded(Coded { name: coder.name(), data });
        }
        check_values_given(decoded, count).map_err(failed)?;
    }
    reframe(&frame, new_indices, new_values, max_len, out).map_err(failed)
}

fn bounded(len: usize, most: usize) -> Result<()> {
    if len <= most {
        return Ok(());
    }
    let reason = format!("a section coded outside has {len} bytes, its bound is {most}");
    Err(Error::Coder { reason })
}

/// What is wrong with a frame that is being written is wrong with whoever coded its sections.
fn failed(error: Error) -> Error {
    match error {
        Error::Corrupt { reason } => Error::Coder { reason },
        other => other,
    }
}
