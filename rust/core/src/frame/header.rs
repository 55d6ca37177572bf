//! The fixed part of a frame: 48 bytes, little-endian.

use super::outside;
use crate::pack::{self, Coding};
use crate::quantize::QuantizerId;
use crate::sparsify::SparsifierId;
use crate::{Dtype, Error, Result};

/// The first three bytes of every frame.
pub const MAGIC: [u8; 3] = *b"GWF";

/// The version that this crate writes, and the only one that it reads.
pub const VERSION: u8 = 1;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 48;

/// Where the checksum stands: the only bytes that it does not cover.
pub(super) const CHECKSUM: std::ops::Range<usize> = 12..16;

/// What a frame says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: u8,
    /// Element type of the tensor that was encoded.
    pub dtype: Dtype,
    /// Which sparsifier chose the entries.
    pub sparsifier: SparsifierId,
    /// How values are coded.
    pub quantizer: QuantizerId,
    /// How positions are coded.
    pub coding: Coding,
    /// Values were multiplied by two to this power before they were rounded.
    pub exponent: i16,
    /// Elements of the tensor.
    pub numel: u64,
    /// Entries in the frame.
    pub count: u64,
    /// Bytes of the index section.
    pub index_len: u64,
    /// Bytes of the value section.
    pub value_len: u64,
    /// CRC-32C of all bytes of the frame but its own four.
    pub checksum: u32,
}

impl Header {
    /// The header as bytes.
    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = self.version;
        // out[4] holds flags, of which version 1 has none.
        out[5] = self.dtype as u8;
        out[6] = self.sparsifier.0;
        out[7] = self.quantizer.0;
        out[8] = self.coding.id();
        out[9] = self.coding.parameter();
        out[10..12].copy_from_slice(&self.exponent.to_le_bytes());
        out[CHECKSUM].copy_from_slice(&self.checksum.to_le_bytes());
        out[16..24].copy_from_slice(&self.numel.to_le_bytes());
        out[24..32].copy_from_slice(&self.count.to_le_bytes());
        out[32..40].copy_from_slice(&self.index_len.to_le_bytes());
        out[40..48].copy_from_slice(&self.value_len.to_le_bytes());
        out
    }

    /// Reads every field on its own, and the parameters of the coding off the index section. What
    /// fields must be together is for [`Header::check`].
    pub(super) fn from_bytes(bytes: &[u8; HEADER_LEN], indices: &[u8]) -> Result<Self> {
        let unsupported = |what, found: u8| Error::Unsupported { what, found: u32::from(found) };
        Ok(Self {
            version: bytes[3],
            dtype: dtype(bytes[5]).ok_or(unsupported("dtype", bytes[5]))?,
            sparsifier: SparsifierId(bytes[6]),
            quantizer: quantizer(bytes[7]).ok_or(unsupported("quantizer", bytes[7]))?,
            coding: Coding::read(bytes[8], bytes[9], indices)?
                .ok_or(unsupported("index coding", bytes[8]))?,
            exponent: i16::from_le_bytes([bytes[10], bytes[11]]),
            numel: u64_at(bytes, 16),
            count: u64_at(bytes, 24),
            index_len: u64_at(bytes, 32),
            value_len: u64_at(bytes, 40),
            checksum: (u64_at(bytes, 8) >> 32) as u32,
        })
    }

    /// Section lengths from the bytes of a header.
    pub(super) fn section_lens(bytes: &[u8; HEADER_LEN]) -> (u64, u64) {
        (u64_at(bytes, 32), u64_at(bytes, 40))
    }

    /// Checks what the fields must be together. The length of the value section is for
    /// [`ValueCoding::parse`](crate::quantize::ValueCoding), which reads its parameters there.
    pub(super) fn check(&self) -> Result<()> {
        let outside = self.quantizer == outside::QUANTIZER;
        let exponents = if outside { Some(0..=0) } else { self.quantizer.exponents() };
        if !exponents.is_some_and(|allowed| allowed.contains(&self.exponent)) {
            let exponent = self.exponent;
            let name = self.quantizer.name().unwrap_or("other");
            return Err(Error::corrupt(format!(
                "exponent {exponent} is not allowed with {name} values"
            )));
        }
        pack::check_len(self.coding, self.numel, self.count, self.index_len)
    }
}

/// Eight bytes of the header as a number.
fn u64_at(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |field| u64::from_le_bytes(*field))
}

fn dtype(id: u8) -> Option<Dtype> {
    [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::BF16].into_iter().find(|d| *d as u8 == id)
}

fn quantizer(id: u8) -> Option<QuantizerId> {
    let id = QuantizerId(id);
    (id == outside::QUANTIZER || id.name().is_some()).then_some(id)
}
