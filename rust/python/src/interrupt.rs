//! Signals: Ctrl-C must not lose a frame.
//!
//! Python runs signal handlers when a call returns. By then an encode has advanced the state, and the
//! exception would lose its frame. So signals are checked at its end, while the encode can still be undone.
//!
//! A signal may still come between that and the end of the call. The interpreter then raises in place
//! of storing what the call returned. So a caller in Python passes the list `[None]`, in which the result is kept
//! before the call returns, and if anything is raised, asks `Codec.retract` to deal with what is there.

use std::cell::RefCell;

use gradwire_core::Error;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyList;

thread_local! {
    /// What a signal handler raised in the middle of an encode.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Keeps an exception of Python for the caller, while the core calls off what it does.
pub(crate) fn hold(error: PyErr) -> Error {
    RAISED.set(Some(error));
    Error::CalledOff
}

/// What [`Error::CalledOff`] was given for in this thread.
pub(crate) fn raised() -> PyErr {
    RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}

/// Gives an exception what the encode came to that it interrupts and that cannot be undone.
pub(crate) fn carry(py: Python<'_>, error: &PyErr, name: &str, result: Bound<'_, PyAny>) {
    let exception = error.value(py);
    let note = format!(
        "another encode has followed, so that this one could not be undone: the state has advanced, \
         and the result is the attribute '{name}' of this exception"
    );
    // An exception that takes neither is raised as it is.
    let _ = exception.setattr(name, result);
    let _ = exception.call_method1("add_note", (note,));
}

/// Keeps what an encode came to for a caller that asked for it, and tells for whom.
pub(crate) fn keep(
    kept: Option<&Py<PyList>>,
    result: &Bound<'_, PyAny>,
) -> PyResult<Option<Keeper>> {
    let Some(kept) = kept else { return Ok(None) };
    let kept = kept.bind(result.py());
    kept.set_item(0, result)?;
    Ok(Some(Keeper::of(kept)))
}

/// The list in which the result of an encode is kept: another one only where that is gone, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keeper(usize);

impl Keeper {
    /// The keeper that a list would be.
    pub(crate) fn of(kept: &Bound<'_, PyList>) -> Self {
        Self(kept.as_ptr().addr())
    }
}
