//! The ids of sparsifiers in the header of a frame.

/// Which sparsifier chose the entries. Told to people and tools; decoding does not depend on it,
/// so readers accept the ids of sparsifiers that they do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SparsifierId(pub u8);

impl SparsifierId {
    /// The name, if this version knows it.
    pub fn name(self) -> Option<&'static str> {
        Self::KNOWN.iter().find(|(id, _)| *id == self).map(|&(_, name)| name)
    }
}
