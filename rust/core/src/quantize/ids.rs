//! The ids of value codings in the header of a frame.

/// Which quantizer coded the values of a frame, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantizerId(pub u8);

impl QuantizerId {
    /// The name, if this version knows it.
    pub fn name(self) -> Option<&'static str> {
        Self::KNOWN.iter().find(|(id, _)| *id == self).map(|&(_, name)| name)
    }
}

/// Which of these ids it is.
pub(super) fn position(ids: &[u8], id: QuantizerId) -> Option<usize> {
    ids.iter().position(|&known| known == id.0)
}
