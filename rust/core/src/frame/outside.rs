//! Values that are coded outside of this crate, by quantizers of other packages.
//!
//! Their section begins with the quantizer's name: one byte with its length and as many of ASCII. What
//! follows is for whoever goes by that name. A reader has [`reframe`] write the same frame with values
//! in its place, and reads that; a writer the reverse, from a frame of the exact values.

use super::destination::Destination;
use super::read::Frame;
use super::write::{frame_len, seal};
use crate::quantize::{Quantizer, QuantizerId};
use crate::{Error, Result};

/// The quantizer of values that are coded outside.
pub const QUANTIZER: QuantizerId = QuantizerId(255);

/// Longest name in bytes.
pub const MAX_NAME: usize = 63;

/// A value section that is coded outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coded<'a> {
    /// Who coded it.
    pub name: &'a str,
    /// What is in it, after the name.
    pub data: &'a [u8],
}

impl<'a> Coded<'a> {
    fn read(section: &'a [u8]) -> Result<Self> {
        let broken = || Error::corrupt("values coded outside do not begin with a name");
        let (&len, rest) = section.split_first().ok_or_else(broken)?;
        let (name, data) = rest.split_at_checked(usize::from(len)).ok_or_else(broken)?;
        let name = std::str::from_utf8(name).map_err(|_| broken())?;
        if is_name(name) { Ok(Self { name, data }) } else { Err(broken()) }
    }

    fn write(self, section: &mut [u8]) {
        let (head, rest) = section.split_at_mut(head_len(self.name));
        head[0] = self.name.len() as u8;
        head[1..].copy_from_slice(self.name.as_bytes());
        rest.copy_from_slice(self.data);
    }
}

/// Bytes of a section before those of the quantizer.
pub const fn head_len(name: &str) -> usize {
    1 + name.len()
}

/// Whether a quantizer may be called that: a lower-case letter, then lower-case letters, digits and
/// `_`.
pub fn is_name(name: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(|c| c.is_ascii_lowercase())
        && name.bytes().all(is_inner)
}

/// Checks a value section that is coded outside, before anything is allocated for its entries.
pub(super) fn check_section(section: &[u8], count: u64) -> Result<()> {
    if count > 0 {
        Coded::read(section)?;
        return check_bits(section.len() as u64, count);
    }
    if section.is_empty() {
        return Ok(());
    }
    let len = section.len();
    Err(Error::corrupt(format!("value section has {len} bytes instead of 0")))
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

impl<'a> Frame<'a> {
    /// The value section, if it is one that this crate cannot read.
    pub fn outside(&self) -> Option<Coded<'a>> {
        let is = self.header().quantizer == QUANTIZER;
        if is { Coded::read(self.value_section()).ok() } else { None }
    }

    /// An error where values are needed that are coded outside.
    pub(super) fn check_inside(&self) -> Result<()> {
        match self.outside() {
            Some(Coded { name, .. }) => Err(Error::Outside { name: name.to_owned() }),
            None => Ok(()),
        }
    }
}

/// The value section of a frame that [`reframe`] writes.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// These values, as float32.
    Plain(&'a [f32]),
    /// This, coded outside.
    Coded(Coded<'a>),
}

/// Writes a frame again with other values, unless it has more than `max_len` bytes then; its length.
///
/// Values are as many as the frame has entries, and finite, and what is coded outside has a bit for
/// each of them at least, of which there are some; anything else is an error that says what it is.
pub fn reframe(
    frame: &Frame<'_>,
    values: Values<'_>,
    max_len: Option<usize>,
    out: &mut Destination<'_>,
) -> Result<usize> {
    let mut header = *frame.header();
    header.exponent = 0;
    match values {
        Values::Plain(given) => {
            check_values(given, header.count)?;
            let coding = Quantizer::Float32.coding(header.numel, 0.0);
            header.quantizer = coding.id();
            header.value_len = coding.value_len(header.numel, header.count);
        }
        Values::Coded(Coded { name, data }) => {
            if !is_name(name) {
                return Err(Error::argument(format!("{name:?} cannot be the name of a part")));
            }
            header.quantizer = QUANTIZER;
            header.value_len = (head_len(name) + data.len()) as u64;
            check_bits(header.value_len, header.count)?;
        }
    }
    let len = frame_len(&header);
    if max_len.is_some_and(|limit| len > limit) {
        return Ok(len);
    }
    seal(header, out, |index_section, value_section| {
        index_section.copy_from_slice(frame.index_section());
        match values {
            Values::Plain(values) => {
                for (code, value) in value_section.as_chunks_mut().0.iter_mut().zip(values) {
                    *code = value.to_le_bytes();
                }
            }
            Values::Coded(coded) => coded.write(value_section),
        }
    })?;
    Ok(len)
}

/// Checks values that were read outside, of a frame with so many entries.
pub fn check_values(values: &[f32], count: u64) -> Result<()> {
    if values.len() as u64 != count {
        let given = values.len();
        return Err(Error::corrupt(format!("{given} values for {count} entries")));
    }
    if values.iter().fold(true, |all, value| all & value.is_finite()) {
        return Ok(());
    }
    Err(Error::corrupt("a value is not finite"))
}
