//! Signals: Ctrl-C must not lose a frame.
//!
//! Python runs signal handlers when a call returns. By then an encode has advanced the state, and the
//! exception would lose its frame. So signals are checked while the encode can still be undone: at its
//! end if there are two buffers, and before the residual is overwritten if there is only one.
//!
//! A signal may still come between that and the end of the call. The interpreter then raises in place
//! of storing what the call returned. So a caller in Python passes the list `[None]`, in which the result is kept
//! before the call returns, and if anything is raised, asks `Codec.retract` to deal with what is there.

use std::cell::RefCell;

use gradwire_core::{Error, Result};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

thread_local! {
    /// What a signal handler raised in the middle of an encode.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs the handlers of signals that have come; what is to be asked before a residual is overwritten.
pub(crate) fn may_overwrite() -> Result<()> {
    Python::attach(|py| py.check_signals().map_err(hold))
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

/// Whether signals are handled in this thread. Others need not take the interpreter in the middle of
/// an encode, which they might have to wait for.
pub(crate) fn handles_signals(py: Python<'_>) -> PyResult<bool> {
    static MAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let main = MAIN.import(py, "threading", "main_thread")?.call0()?;
    let current = CURRENT.import(py, "threading", "get_ident")?.call0()?;
    main.getattr("ident")?.eq(current)
}

/// Gives an exception what the encode came to that it interrupts and that cannot be undone.
pub(crate) fn carry(py: Python<'_>, error: &PyErr, name: &str, result: Bound<'_, PyAny>) {
    let exception = error.value(py);
    let note = format!(
        "an encode with low_memory could no longer be undone: the state has advanced, and the \
         result is the attribute '{name}' of this exception"
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
