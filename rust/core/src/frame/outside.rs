//! Sections that are coded outside of this crate, by parts of other packages.
//!
//! Such a section begins with the part's name: one byte with its length and as many of ASCII. What
//! follows is for whoever goes by that name. A reader has [`reframe`] write the same frame with
//! positions and values in their place, and reads that; a writer the reverse, from a frame of the
//! exact values.

pub use crate::outside::{Coded, ID, MAX_NAME, head_len, is_name};

use super::header::Header;
use super::read::Frame;
use super::write::seal;
use crate::outside::split;
use crate::pack::{self, Coding, IndexCoding, Pattern};
use crate::quantize::{Quantizer, QuantizerId};
use crate::{Error, Result, room};

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
    if section.len() as u64 * 8 < count {
        let len = section.len();
        return Err(Error::corrupt(format!(
            "value section has {len} bytes, less than a bit for each of {count} entries"
        )));
    }
    Ok(())
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

/// Writes a frame again with other sections, in place of what `out` held.
///
/// Positions and values are as many as the frame has entries, positions strictly ascending and below
/// its `numel`, values finite, and a coded section of values has a bit for each of them at least;
/// anything else is an error that says what it is.
pub fn reframe(
    frame: &Frame<'_>,
    indices: Indices<'_>,
    values: Values<'_>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut header = *frame.header();
    let (numel, count) = (header.numel, header.count);
    let mut index_section = Bytes::Same(frame.index_section());
    match indices {
        // What has no entries, or all of them, has nothing to code.
        _ if count == 0 || count == numel && header.coding == Coding::None => {}
        Indices::Same => {}
        Indices::Plain(positions) => {
            check_positions(positions, numel, count)?;
            let (coding, len) = pack::choose(IndexCoding::Auto, Pattern::Any, positions, numel);
            let mut section = room::zeros(len)?;
            let positions = if coding == Coding::None { &[] } else { positions };
            pack::encode_into(coding, positions, numel, &mut section);
            header.coding = coding;
            index_section = Bytes::New(section);
        }
        Indices::Coded(coded) => {
            header.coding = Coding::Outside;
            index_section = Bytes::New(joined(coded)?);
        }
    }
    let mut value_section = Bytes::Same(frame.value_section());
    match values {
        Values::Same => {}
        Values::Plain(values) => {
            check_values_given(values, count)?;
            let coding = Quantizer::Float32.coding(numel, 0.0);
            (header.quantizer, header.exponent) = (coding.id(), 0);
            let mut section = room::zeros(coding.value_len(numel, count) as usize)?;
            for (code, value) in section.as_chunks_mut().0.iter_mut().zip(values) {
                *code = value.to_le_bytes();
            }
            value_section = Bytes::New(section);
        }
        Values::Coded(_) if count == 0 => {}
        Values::Coded(coded) => {
            (header.quantizer, header.exponent) = (QUANTIZER, 0);
            let section = joined(coded)?;
            check_values(&section, count)?;
            value_section = Bytes::New(section);
        }
    }
    let (indices, values) = (index_section.as_slice(), value_section.as_slice());
    let header = Header {
        index_len: indices.len() as u64,
        value_len: values.len() as u64,
        checksum: 0,
        ..header
    };
    seal(header, out, |index_section, value_section| {
        index_section.copy_from_slice(indices);
        value_section.copy_from_slice(values);
    })
}

/// A section, borrowed or new.
enum Bytes<'a> {
    Same(&'a [u8]),
    New(Vec<u8>),
}

impl Bytes<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Same(bytes) => bytes,
            Self::New(bytes) => bytes,
        }
    }
}

fn joined(coded: Coded<'_>) -> Result<Vec<u8>> {
    let Coded { name, data } = coded;
    if !is_name(name) {
        return Err(Error::argument(format!("{name:?} cannot be the name of a part")));
    }
    let mut section = Vec::new();
    room::reserve(&mut section, head_len(name) + data.len())?;
    section.push(name.len() as u8);
    section.extend(name.as_bytes());
    section.extend(data);
    Ok(section)
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
