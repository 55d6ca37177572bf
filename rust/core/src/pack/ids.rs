//! The ids and names of codings: in frames, and in configurations.

use super::{Coding, IndexCoding};
use crate::{Error, Result};

/// The ids in frames.
mod id {
    pub const NONE: u8 = 0;
    pub const ELIAS_FANO: u8 = 1;
    pub const RICE: u8 = 2;
    pub const BITMAP: u8 = 3;
    pub const CHUNK_LOCAL: u8 = 4;
    pub const SEEDED: u8 = 5;
}

impl Coding {
    /// The id in frames, its name, and the parameter in the header.
    fn row(self) -> (u8, &'static str, u8) {
        match self {
            Self::None => (id::NONE, "none", 0),
            Self::EliasFano { low_bits } => (id::ELIAS_FANO, "elias-fano", low_bits),
            Self::Rice { bits } => (id::RICE, "rice", bits),
            Self::Bitmap => (id::BITMAP, "bitmap", 0),
            Self::ChunkLocal(_) => (id::CHUNK_LOCAL, "chunk-local", 0),
            Self::Seeded(_) => (id::SEEDED, "seeded", 0),
        }
    }

    /// The id in frames.
    pub fn id(self) -> u8 {
        self.row().0
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The parameter in the header of a frame; 0 if it has none there.
    pub fn parameter(self) -> u8 {
        self.row().2
    }

    /// The coding of an id and a parameter, the rest of which its section begins with; none where the
    /// id is not known.
    pub(crate) fn read(id: u8, parameter: u8, section: &[u8]) -> Result<Option<Self>> {
        let coding = match id {
            id::NONE => Self::None,
            id::ELIAS_FANO => Self::EliasFano { low_bits: parameter },
            id::RICE => Self::Rice { bits: parameter },
            id::BITMAP => Self::Bitmap,
            id::CHUNK_LOCAL => Self::read_chunks(section)?,
            id::SEEDED => Self::read_draw(section)?,
            _ => return Ok(None),
        };
        if coding.parameter() != parameter {
            return Err(Error::corrupt(format!(
                "parameter {parameter} with a coding that takes none"
            )));
        }
        Ok(Some(coding))
    }
}

impl IndexCoding {
    /// All there are, with their names in configurations.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("elias-fano", Self::EliasFano),
        ("rice", Self::Rice),
        ("bitmap", Self::Bitmap),
    ];

    /// That of a name in a configuration.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::NAMED.iter().find(|(known, _)| *known == name);
        found.map(|&(_, coding)| coding).ok_or_else(|| {
            let names = Self::NAMED.map(|(known, _)| known).join(", ");
            Error::argument(format!("{name:?} is no index coding; there are {names}"))
        })
    }
}
