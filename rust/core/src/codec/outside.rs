//! Encoding with values that are coded outside of this crate.
//!
//! The codec itself codes values exactly: its frame carries them to whoever codes them outside. What
//! comes back takes their place in the frame, and what a receiver will decode is then put right in the
//! memory, as if it had been coded here. On any error the encode is undone.

use super::{Codec, Encoded, State, Support, Workspace, limit_too_small};
use crate::frame::outside::{Coded, Values, check_values, head_len, reframe};
use crate::frame::{Destination, Frame, HEADER_LEN};
use crate::quantize::Quantizer;
use crate::simd::in_standard_mode;
use crate::{Error, Input, Result};

/// How often a frame that is too long is made again with entries in proportion.
const GUESSES: u32 = 8;

/// Bytes that a code may have besides the bits of its values: a scale, for example.
pub const EXTRA_BYTES: usize = 64;

/// Codes values.
pub trait CodeValues: Send {
    /// Its name, as [`is_name`](crate::frame::outside::is_name) has it.
    fn name(&self) -> &str;

    /// The most bits of a value.
    fn bits(&self) -> u32;

    /// Replaces what `data` holds by a code of the values, and what `decoded` holds by the values that
    /// a receiver will make of it: as many, all finite.
    fn encode(&mut self, values: &[f32], data: &mut Vec<u8>, decoded: &mut Vec<f32>) -> Result<()>;
}

/// The most bytes of a code of so many values with so many bits: 104 for 10 values with 32 bits.
fn longest_code(bits: u32, count: u64) -> usize {
    (u64::from(bits) * count).div_ceil(8) as usize + EXTRA_BYTES
}

/// A frame on its way: exact, and what was made of its values.
#[derive(Default)]
struct Carried {
    frame: Vec<u8>,
    positions: Vec<u32>,
    values: Vec<f32>,
    data: Vec<u8>,
    decoded: Vec<f32>,
}

impl Codec {
    /// As [`Codec::encode_into`], or with positions [`Codec::encode_at`], with values that are coded
    /// outside: the quantizer of the codec is [`Quantizer::Float32`].
    ///
    /// A frame that is too long is made again with fewer entries. Costs an exact frame besides.
    #[allow(clippy::too_many_arguments, reason = "those of an encode, and two that are its own")]
    pub fn encode_outside<'o>(
        &self,
        input: Input<'_>,
        state: &mut State,
        support: Option<Support<'_>>,
        max_len: Option<usize>,
        coder: &mut dyn CodeValues,
        workspace: &mut Workspace,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        let out = &mut out.into();
        if self.quantizer != Quantizer::Float32 {
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
            let need = match recode(coder, &mut carried, max_len, out) {
                Ok(need) => need,
                Err(error) => {
                    state.rollback()?;
                    out.clear();
                    return Err(error);
                }
            };
            let Some(limit) = max_len.filter(|&limit| need > limit) else {
                in_standard_mode(|| self.keep_rest(&carried, state));
                return Ok(Encoded { nbytes: need, ..encoded });
            };
            state.rollback()?;
            if self.sparsifier.is_dense() || !support.is_none_or(|support| support.may_trim) {
                out.clear();
                return Err(limit_too_small(limit, need));
            }
            let have = carried.frame.len();
            most = Some(if tries + 1 < GUESSES {
                fewer(tries, have, need, limit, HEADER_LEN + head_len(coder.name()))
            } else {
                self.surely(input.len(), limit, coder)
            });
        }
        Err(Error::CalledOff)
    }

    /// The longest frame of `count` entries or fewer, in bytes; without a count of those selected.
    pub fn max_len_outside(
        &self,
        numel: usize,
        count: Option<u64>,
        name: &str,
        bits: u32,
    ) -> usize {
        let most = count.unwrap_or_else(|| in_standard_mode(|| self.sparsifier.max_count(numel)));
        let count = most.min(numel as u64);
        if count == 0 {
            return HEADER_LEN;
        }
        let values = head_len(name) + longest_code(bits, count);
        if self.sparsifier.is_dense() {
            return HEADER_LEN + values;
        }
        // The full support takes no bytes, so that an entry less may take more.
        let exact = self.max_len_of(numel, count).max(self.max_len_of(numel, count - 1));
        exact - size_of::<f32>() * (count as usize - 1) + values
    }

    /// Puts right what the memory becomes of entries that are decoded as something else.
    fn keep_rest(&self, carried: &Carried, state: &mut State) {
        let entries = carried.positions.iter().zip(&carried.values).zip(&carried.decoded);
        let entries = entries.map(|((&at, &value), &sent)| (at as usize, value, sent));
        state.kept.amend(self.memory, entries);
    }

    /// The room for an exact frame of so few entries that no other can be too long with them.
    fn surely(&self, numel: usize, limit: usize, coder: &dyn CodeValues) -> usize {
        let (name, bits) = (coder.name(), coder.bits());
        let fits = |count| self.max_len_outside(numel, Some(count), name, bits) <= limit;
        let (mut most, mut beyond) = (0, numel as u64);
        while beyond - most > 1 {
            let middle = u64::midpoint(most, beyond);
            if fits(middle) { most = middle } else { beyond = middle }
        }
        // One entry more does not fit into this, wherever it is.
        HEADER_LEN + size_of::<f32>() * (most as usize + 1) - 1
    }
}

/// The room for the next exact frame, where one of `have` bytes came out as `need` and may have
/// `limit`: in proportion, but for the bytes that do not shrink with the entries.
fn fewer(tries: u32, have: usize, need: usize, limit: usize, fixed: usize) -> usize {
    let rest = need.saturating_sub(fixed).max(1);
    let share = limit.saturating_sub(fixed) as f64 / rest as f64;
    let room = ((have - HEADER_LEN) as f64 * share) as usize;
    HEADER_LEN + room.saturating_sub(4 * tries as usize).min(have - HEADER_LEN - 1)
}

/// Has the values coded, and the frame written with them if it may be as long; its length.
fn recode(
    coder: &mut dyn CodeValues,
    carried: &mut Carried,
    max_len: Option<usize>,
    out: &mut Destination<'_>,
) -> Result<usize> {
    let Carried { frame, positions, values, data, decoded } = carried;
    let frame = Frame::parse_again(frame, None)?;
    let count = frame.header().count;
    frame.indices_into(positions)?;
    frame.values_into(values)?;
    decoded.clear();
    if count == 0 {
        return reframe(&frame, Values::Plain(&[]), max_len, out);
    }
    coder.encode(values, data, decoded)?;
    let (len, most) = (data.len(), longest_code(coder.bits(), count));
    if len > most {
        let reason = format!("values coded outside have {len} bytes, their bound is {most}");
        return Err(Error::Coder { reason });
    }
    let values = Values::Coded(Coded { name: coder.name(), data });
    let written = check_values(decoded, count).and_then(|()| reframe(&frame, values, max_len, out));
    // What is wrong with a frame that is being written is wrong with whoever coded its values.
    written.map_err(|error| match error {
        Error::Corrupt { reason } => Error::Coder { reason },
        other => other,
    })
}
