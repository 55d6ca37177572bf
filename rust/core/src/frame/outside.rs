//! Sections that are coded outside of this crate, by parts of other packages.
//!
//! Such a section begins with the part's name: one byte with its length and as many of ASCII. What
//! follows is for whoever goes by that name. A reader has [`reframe`] write the same frame with
//! positions and values in their place, and reads that; a writer the reverse, from a frame of the
//! exact values.

pub use crate::outside::{Coded, ID, MAX_NAME, head_len, is_name};

use super::destination::Destination;
use super::read::Frame;
use super::write::{frame_len, seal};
use crate::outside::split;
use crate::pack::{self, Coding, IndexCoding, Pattern};
use crate::quantize::{Quantizer, QuantizerId};
use crate::{Error, Result};

/// The quantizer of values that are coded outside.
pub const QUANTIZER: QuantizerId = QuantizerId(ID);

/// The sections of a frame that are coded outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside<'a> {
    /// The index section.
    pub indices: Option<Coded<'a>>,
    /// The value section.
    pub values: Option<Coded<'a>>,
}

impl Outside<'_> {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.indices.is_none() && self.values.is_none()
    }
}

/// Checks a value section that is coded outside, before anything is allocated for its entries.
pub(super) fn check_values(section: &[u8], count: u64) -> Result<()> {
    if count == 0 {
        let len = section.len();
        let empty = section.is_empty();
        return if empty { Ok(()) } else { Err(too_long(len)) };
    }
    split(section)?;
    check_bits(section.len() as u64, count)
}

/// Values take a bit each at least.
fn check_bits(len: u64, count: u64) -> Result<()> {
    if len * 8 >= count {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "value section has {len} bytes, less than a bit for each of {count} entries"
    )))
}

fn too_long(len: usize) -> Error {
    Error::corrupt(format!("value section has {len} bytes instead of 0"))
}

impl<'a> Frame<'a> {
    /// The sections that this crate cannot read.
    pub fn outside(&self) -> Outside<'a> {
        let header = self.header();
        let coded = |is: bool, section| if is { split(section).ok() } else { None };
        Outside {
            indices: coded(header.coding == Coding::Outside, self.index_section()),
            values: coded(header.quantizer == QUANTIZER, self.value_section()),
        }
    }

    /// An error where positions are needed that are coded outside.
    pub(super) fn check_indices(&self) -> Result<()> {
        refused("index coding", self.outside().indices)
    }

    /// An error where anything is needed that is coded outside.
    pub(super) fn check_inside(&self) -> Result<()> {
        self.check_indices()?;
        refused("quantizer", self.outside().values)
    }
}

fn refused(what: &'static str, coded: Option<Coded<'_>>) -> Result<()> {
    match coded {
        Some(Coded { name, .. }) => Err(Error::Outside { what, name: name.to_owned() }),
        None => Ok(()),
    }
}

/// The index section of a frame that [`reframe`] writes.
#[derive(Debug, Clone, Copy)]
pub enum Indices<'a> {
    /// That of the other frame.
    Same,
    /// These positions, coded here.
    Plain(&'a [u32]),
    /// This, coded outside.
    Coded(Coded<'a>),
}

/// The value section of a frame that [`reframe`] writes.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// That of the other frame.
    Same,
    /// These values, as float32.
    Plain(&'a [f32]),
    /// This, coded outside.
    Coded(Coded<'a>),
}

/// Writes a frame again with other sections, unless it has more than `max_len` bytes then; its length.
///
/// Positions and values are as many as the frame has entries, positions strictly ascending and below
/// its `numel`, values finite, and a coded section of values has a bit for each of them at least;
/// anything else is an error that says what it is.
pub fn reframe(
    frame: &Frame<'_>,
    mut indices: Indices<'_>,
    mut values: Values<'_>,
    max_len: Option<usize>,
    out: &mut Destination<'_>,
) -> Result<usize> {
    let mut header = *frame.header();
    let (numel, count) = (header.numel, header.count);
    if count == 0 || count == numel && header.coding == Coding::None {
        // What has no entries, or all of them, has nothing to code.
        indices = Indices::Same;
    }
    match &mut indices {
        Indices::Same => {}
        Indices::Plain(positions) => {
            check_positions(positions, numel, count)?;
            let (coding, len) = pack::choose(IndexCoding::Auto, Pattern::Any, positions, numel);
            (header.coding, header.index_len) = (coding, len as u64);
            if coding == Coding::None {
                *positions = &[];
            }
        }
        Indices::Coded(coded) => {
            (header.coding, header.index_len) = (Coding::Outside, section_len(*coded)?);
        }
    }
    match values {
        Values::Same => {}
        Values::Plain(given) => {
            check_values_given(given, count)?;
            let coding = Quantizer::Float32.coding(numel, 0.0);
            (header.quantizer, header.exponent) = (coding.id(), 0);
            header.value_len = coding.value_len(numel, count);
        }
        Values::Coded(_) if count == 0 => values = Values::Same,
        Values::Coded(coded) => {
            (header.quantizer, header.exponent) = (QUANTIZER, 0);
            header.value_len = section_len(coded)?;
            check_bits(header.value_len, count)?;
        }
    }
    let len = frame_len(&header);
    if max_len.is_some_and(|limit| len > limit) {
        return Ok(len);
    }
    seal(header, out, |index_section, value_section| {
        match indices {
            Indices::Same => index_section.copy_from_slice(frame.index_section()),
            Indices::Plain(positions) => {
                pack::encode_into(header.coding, positions, numel, index_section);
            }
            Indices::Coded(coded) => write_section(coded, index_section),
        }
        match values {
            Values::Same => value_section.copy_from_slice(frame.value_section()),
            Values::Plain(values) => {
                for (code, value) in value_section.as_chunks_mut().0.iter_mut().zip(values) {
                    *code = value.to_le_bytes();
                }
            }
            Values::Coded(coded) => write_section(coded, value_section),
        }
    })?;
    Ok(len)
}

/// Bytes of a section that is coded outside.
fn section_len(Coded { name, data }: Coded<'_>) -> Result<u64> {
    if is_name(name) {
        return Ok((head_len(name) + data.len()) as u64);
    }
    Err(Error::argument(format!("{name:?} cannot be the name of a part")))
}

fn write_section(Coded { name, data }: Coded<'_>, section: &mut [u8]) {
    let (head, rest) = section.split_at_mut(head_len(name));
    head[0] = name.len() as u8;
    head[1..].copy_from_slice(name.as_bytes());
    rest.copy_from_slice(data);
}

/// Checks positions that were read outside of a frame like this.
pub fn check_positions(positions: &[u32], numel: u64, count: u64) -> Result<()> {
    same_count("positions", positions.len(), count)?;
    let ascending = positions.is_sorted_by(|a, b| a < b);
    if ascending && positions.last().is_none_or(|&last| u64::from(last) < numel) {
        return Ok(());
    }
    Err(Error::corrupt(format!("positions do not ascend strictly below {numel}")))
}

/// Checks values that were read outside of a frame like this.
pub fn check_values_given(values: &[f32], count: u64) -> Result<()> {
    same_count("values", values.len(), count)?;
    if values.iter().fold(true, |all, value| all & value.is_finite()) {
        return Ok(());
    }
    Err(Error::corrupt("a value is not finite"))
}

fn same_count(what: &str, given: usize, count: u64) -> Result<()> {
    if given as u64 == count {
        return Ok(());
    }
    Err(Error::corrupt(format!("{given} {what} for {count} entries")))
}
