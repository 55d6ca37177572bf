//! The parameters that a value section begins with.

use std::ops::RangeInclusive;

use crate::{Error, Result};

/// The bytes before the scales.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prologue {
    bytes: [u8; 8],
    len: usize,
}

impl Prologue {
    /// No parameters.
    pub const NONE: Self = Self { bytes: [0; 8], len: 0 };

    /// Four bytes that mean something each.
    pub fn of(given: [u8; 4]) -> Self {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&given);
        Self { bytes, len: 4 }
    }

    /// Reads the four bytes.
    pub fn read(section: &[u8]) -> Result<[u8; 4]> {
        first(section)
    }

    /// One number: how many entries or positions share scales.
    pub fn of_len(len: u32) -> Self {
        Self::of(len.to_le_bytes())
    }

    /// Reads the number.
    pub fn read_len(section: &[u8]) -> Result<u32> {
        Ok(u32::from_le_bytes(Self::read(section)?))
    }

    /// The bits of a code, three zeros, and the entries of a block.
    pub fn of_bits(bits: u8, block: u32) -> Self {
        let mut bytes = [bits, 0, 0, 0, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&block.to_le_bytes());
        Self { bytes, len: 8 }
    }

    /// Reads bits and block; `what` has them is for the error.
    pub fn read_bits(
        section: &[u8],
        allowed: &RangeInclusive<u8>,
        what: &str,
    ) -> Result<(u8, u32)> {
        let [bits, reserved @ .., a, b, c, d] = first::<8>(section)?;
        let block = u32::from_le_bytes([a, b, c, d]);
        if !allowed.contains(&bits) || reserved != [0; 3] || block == 0 {
            return Err(Error::corrupt(format!(
                "{what} of {bits} bits in blocks of {block}, reserved bytes {reserved:?}"
            )));
        }
        Ok((bits, block))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.len
    }
}

/// The first bytes of a section.
fn first<const N: usize>(section: &[u8]) -> Result<[u8; N]> {
    section
        .first_chunk()
        .copied()
        .ok_or_else(|| Error::corrupt(format!("value section has only {} bytes", section.len())))
}
