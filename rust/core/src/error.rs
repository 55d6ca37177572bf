//! One error enum for the crate: a variant for each way to be wrong, a sentence for each variant.

/// What can go wrong in this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too few bytes: the frame ends before `what` does.
    #[error("truncated frame: {what} needs {need} bytes, {have} are there")]
    Truncated {
        /// The part of the frame that is cut off.
        what: &'static str,
        /// Bytes needed up to the end of that part.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// Your bytes are bad.
    #[error("corrupt frame: {reason}")]
    Corrupt {
        /// What contradicts the format.
        reason: String,
    },
    /// The frame is larger than the caller is ready to take.
    #[error("frame of {numel} elements exceeds the limit of {limit}")]
    TooLarge {
        /// Elements the frame claims to have.
        numel: u64,
        /// Elements the caller allows.
        limit: u64,
    },
    /// Your library is too old, or built without this part.
    #[error("unsupported frame: {what} {found} is not known to this version")]
    Unsupported {
        /// The field of the header.
        what: &'static str,
        /// The value found in it.
        found: u32,
    },
    /// NaN or infinity in a tensor to encode. State is as before the call.
    #[error("{count} non-finite value(s), the first at position {first}")]
    NonFinite {
        /// How many entries are NaN or infinite.
        count: u64,
        /// Position of the first one.
        first: u64,
    },
    /// The tensor to encode changed while it was being read. State is as before the call, but for a
    /// residual in one buffer, which was overwritten.
    #[error("the tensor changed while it was being encoded")]
    Changed,
    /// The smallest possible frame is longer than the caller has room for.
    #[error("at most {limit} bytes are allowed, the smallest possible frame has {need}")]
    LimitTooSmall {
        /// Bytes allowed.
        limit: u64,
        /// Bytes of the smallest frame.
        need: u64,
    },
    /// There is no memory for a buffer of the size of the data. State is as before the call.
    #[error("out of memory: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// The encode was called off before it overwrote anything. State is as before the call.
    #[error("called off")]
    CalledOff,
    /// You called it wrong.
    #[error("{reason}")]
    Argument {
        /// What was given, what was expected, and what to do.
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

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;
