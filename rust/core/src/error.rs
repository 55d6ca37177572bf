//! The error type of the crate, with one variant per kind of error.

/// What can go wrong in this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end before the frame does.
    #[error("truncated frame: {what} needs {need} bytes, got {have}")]
    Truncated {
        /// The part of the frame that is incomplete.
        what: &'static str,
        /// Bytes needed up to the end of that part.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// The bytes are not a valid frame.
    #[error("corrupt frame: {reason}")]
    Corrupt {
        /// What violates the format.
        reason: String,
    },
    /// The frame has more elements than the caller accepts.
    #[error("frame of {numel} elements exceeds the limit of {limit}")]
    TooLarge {
        /// Elements that the frame claims to have.
        numel: u64,
        /// Elements that the caller allows.
        limit: u64,
    },
    /// The frame needs a newer version of this crate.
    #[error("unsupported frame: this version does not know {what} {found}")]
    Unsupported {
        /// The header field.
        what: &'static str,
        /// Its value.
        found: u32,
    },
    /// The values of the frame are coded outside of this crate.
    #[error("unsupported frame: the quantizer '{name}' is not known here")]
    Outside {
        /// Who coded them.
        name: String,
    },
    /// What codes values outside of this crate has failed. The state does not change.
    #[error("{reason}")]
    Coder {
        /// What went wrong.
        reason: String,
    },
    /// A tensor to encode has NaN or infinite entries. The state does not change.
    #[error("{count} non-finite value(s), the first at position {first}")]
    NonFinite {
        /// Number of entries that are NaN or infinite.
        count: u64,
        /// Position of the first one.
        first: u64,
    },
    /// The tensor to encode changed while it was being read. The state does not change.
    #[error("the tensor changed while it was being encoded")]
    Changed,
    /// The smallest possible frame is longer than the caller allows.
    #[error("at most {limit} bytes are allowed, but the smallest possible frame has {need}")]
    LimitTooSmall {
        /// Bytes allowed.
        limit: u64,
        /// Bytes of the smallest frame.
        need: u64,
    },
    /// A buffer could not be allocated. The state does not change.
    #[error("out of memory: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// The call was cancelled.
    #[error("the call was cancelled")]
    CalledOff,
    /// A row is asked for that a matrix does not have. Nothing is written.
    #[error("index {index} is not that of one of {rows} rows")]
    NoRow {
        /// The number of the row.
        index: i64,
        /// Rows that there are.
        rows: u64,
    },
    /// An argument is invalid.
    #[error("{reason}")]
    Argument {
        /// What was given and expected, and what to do.
        reason: String,
    },
}

impl Error {
    /// An [`Error::Corrupt`] with this reason.
    pub(crate) fn corrupt(reason: impl Into<String>) -> Self {
        Self::Corrupt { reason: reason.into() }
    }

    /// An [`Error::Argument`] with this reason.
    pub(crate) fn argument(reason: impl Into<String>) -> Self {
        Self::Argument { reason: reason.into() }
    }
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
