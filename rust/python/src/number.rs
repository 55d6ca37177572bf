//! Extraction of Python numbers, with errors that name the argument.
//!
//! By default an integer that is out of range raises an `OverflowError`, which says neither which
//! argument was wrong nor what was expected.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The number an argument is, or the numbers in a sequence: an error of type `ValueError` where `T` does not hold it.
pub(crate) fn number<'py, T>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    object.extract().map_err(Into::into).map_err(|error: PyErr| {
        let py = object.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            PyValueError::new_err(format!("{name} is out of range, got {}", shown(object)))
        } else if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(format!("{name}: {}", error.value(py)))
        } else {
            error
        }
    })
}

/// As [`number`], none for None.
pub(crate) fn optional<'py, T>(
    name: &str,
    object: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<T>>
where
    T: FromPyObjectOwned<'py>,
{
    object.map(|object| number(name, object)).transpose()
}

/// What was given as Python writes it, unless is longer than anybody reads.
fn shown(object: &Bound<'_, PyAny>) -> String {
    match object.repr().map(|repr| repr.to_string()) {
        Ok(text) if text.len() <= 40 => text,
        _ => "one of more than 40 characters".to_owned(),
    }
}
