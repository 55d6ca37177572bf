//! The wire format: self-describing bytes of one tensor, or of the entries selected from it.
//!
//! `docs/frame-format.md` is the normative text. A frame is a [`Header`] of 48 bytes, the index
//! section and the value section; a CRC-32C covers every other byte. [`write_into`] makes one
//! at a [`Destination`],
//! [`Frame::parse`] checks one, and a [`Frame`] adds itself to a tensor.
//!
//! Readers are safe for untrusted bytes: everything is checked before memory in proportion to it is
//! allocated, or the caller's memory is written.

mod blocks;
mod destination;
mod header;
pub mod outside;
mod positions;
mod read;
mod split;
mod write;

pub(crate) use blocks::{Codes, compress};
pub use destination::Destination;
pub use header::{HEADER_LEN, Header, MAGIC, VERSION};
pub use positions::{POSITIONS_HEAD, read_positions, write_positions};
pub use read::{Frame, Scratch};
pub use split::{Part, Split};
pub(crate) use write::{Entries, write_dense};
pub use write::{Layout, dense_len, max_len, write_into, write_with};

#[cfg(test)]
mod tests;
