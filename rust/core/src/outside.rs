//! Parts of other packages: how a section begins that one of them has coded.

use crate::{Error, Result};

/// The quantizer id and the coding id of what is coded outside.
pub const ID: u8 = 255;

/// Longest name in bytes.
pub const MAX_NAME: usize = 63;

/// Bytes of a section before those of the part.
pub const fn head_len(name: &str) -> usize {
    1 + name.len()
}

/// A section that is coded outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coded<'a> {
    /// Who coded it.
    pub name: &'a str,
    /// What is in it, after the name.
    pub data: &'a [u8],
}

/// Name and contents of a section.
pub(crate) fn split(section: &[u8]) -> Result<Coded<'_>> {
    let broken = || Error::corrupt("a section coded outside does not begin with a name");
    let (&len, rest) = section.split_first().ok_or_else(broken)?;
    let (name, data) = rest.split_at_checked(usize::from(len)).ok_or_else(broken)?;
    let name = std::str::from_utf8(name).map_err(|_| broken())?;
    if is_name(name) { Ok(Coded { name, data }) } else { Err(broken()) }
}

/// Whether a part may be called that: a lower-case letter, then lower-case letters, digits and `_`.
pub fn is_name(name: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(|c| c.is_ascii_lowercase())
        && name.bytes().all(is_inner)
}
