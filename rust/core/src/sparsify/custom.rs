//! A selection from outside of this crate.

/// Entries that are selected outside of this crate: encode them with [`Codec::encode_at`].
///
/// [`Codec::encode_at`]: crate::codec::Codec::encode_at
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Custom {
    /// An identifier, to tell custom sparsifiers apart.
    pub id: u64,
}
