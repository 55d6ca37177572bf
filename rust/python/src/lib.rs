//! Python bindings of [`gradwire_core`]: thin, typed, and holding no algorithm.

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
