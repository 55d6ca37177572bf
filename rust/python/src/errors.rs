//! The core's errors as the exceptions of `gradwire.errors`.

use gradwire_core::Error;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::interrupt;

/// The exception for an error of the core; `name` is the tensor's, where it has one.
pub(crate) fn to_py(py: Python<'_>, error: Error, name: Option<&str>) -> PyErr {
    match error {
        Error::Truncated { what, need, have } => {
            raise(py, "TruncatedFrameError", (what, need, have))
        }
        Error::Corrupt { reason } => raise(py, "CorruptFrameError", (reason,)),
        Error::TooLarge { numel, limit } => raise(py, "FrameTooLargeError", (numel, limit)),
        Error::Unsupported { what, found } => raise(py, "UnsupportedFrameError", (what, found)),
        Error::Outside { name } => raise(py, "UnsupportedFrameError", ("quantizer", name)),
        Error::CalledOff => interrupt::raised(),
        Error::NonFinite { count, first } => raise(py, "NonFiniteError", (count, first, name)),
        Error::Changed => raise(py, "InputChangedError", (name,)),
        Error::NoRow { .. } => PyIndexError::new_err(error.to_string()),
        Error::Argument { reason } => PyValueError::new_err(reason),
        Error::LimitTooSmall { .. } => PyValueError::new_err(error.to_string()),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(error.to_string()),
        // The enum may grow; its own sentence is the best there is for what is not known here.
        other => raise(py, "GradwireError", (other.to_string(),)),
    }
}

/// The exception for a state that another thread is using.
pub(crate) fn state_in_use(py: Python<'_>, name: Option<&str>) -> PyErr {
    let which = name.map_or_else(String::new, |name| format!(" of '{name}'"));
    let reason =
        format!("the state{which} is in use by another thread; use one state per thread or tensor");
    raise(py, "StateInUseError", (reason,))
}

fn raise<'py>(py: Python<'py>, class: &str, args: impl PyCallArgs<'py>) -> PyErr {
    let exception = py
        .import("gradwire.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1(args));
    match exception {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
