//! Python bindings of [`gradwire_core`]: thin, typed, and holding no algorithm.
//!
//! | file | what it binds |
//! |---|---|
//! | `bucket` | many tensors encoded or averaged in one call |
//! | `buffer` | arrays and bytes of Python as slices, and back (the only unsafe code) |
//! | `config` | a plain dict to a codec |
//! | `codec` | encoding |
//! | `state` | what changes from one encode to the next |
//! | `frame` | frames, and decoding |
//! | `errors` | the core's errors as the exceptions of `gradwire.errors` |
//! | `scratch` | scratch memory that each thread keeps |
//! | `interrupt` | signals that come during an encode |
//! | `outside` | values coded by quantizers of other packages |
//! | `packed` | packed weights, decoded or multiplied |
//! | `solve` | codes of packed weights by what a layer's inputs say, and what they lose |
//! | `lossless` | floats as codes, and back bit for bit |
//! | `patch` | what makes a tensor of another, and undoes that |
//! | `number` | numbers, with errors that name the argument |
//!
//! Every call that processes a whole tensor lets other Python threads run.

// Documentation of what Python sees is numpydoc, for readers of Python.
#![allow(clippy::doc_markdown)]

mod bucket;
mod buffer;
mod codec;
mod config;
mod errors;
mod frame;
mod interrupt;
mod lossless;
mod number;
mod outside;
mod packed;
mod patch;
mod ranges;
mod scratch;
mod solve;
mod state;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    use gradwire_core::environment::{self, MOST_THREADS};
    use gradwire_core::{pool, simd};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use crate::bucket::{average_bucket, encode_bucket, read_bucket};
    #[pymodule_export]
    use crate::buffer::ReadOnlyBuffer;
    #[pymodule_export]
    use crate::codec::Codec;
    #[pymodule_export]
    use crate::frame::{Frame, decode, decode_add, pack_positions, unpack_positions};
    #[pymodule_export]
    use crate::lossless::{crc32c, lossless_decode, lossless_encode};
    #[pymodule_export]
    use crate::packed::{
        packed_check, packed_error, packed_further, packed_join, packed_linear, packed_of_codes,
        packed_rows, packed_take, packed_with_codes,
    };
    #[pymodule_export]
    use crate::patch::{PatchUndo, patch_apply, patch_check, patch_encode};
    #[pymodule_export]
    use crate::ranges::{merge_bucket, split_bucket};
    #[pymodule_export]
    use crate::solve::{gram_errors, solve_comq, solve_gptq, solve_magr};
    #[pymodule_export]
    use crate::state::State;

    use crate::number::number;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Entries that bytes from outside may claim unless the caller says otherwise.
    #[pymodule_export]
    const DEFAULT_MAX_NUMEL: u64 = crate::frame::DEFAULT_MAX_NUMEL;

    /// Set the number of threads that one call may use, for the whole process.
    ///
    /// Results do not depend on it.
    ///
    /// Parameters
    /// ----------
    /// count : int
    ///     From 1 to 4096.
    #[pyfunction]
    fn set_num_threads(count: &Bound<'_, PyAny>) -> PyResult<()> {
        let count: i64 = number("count", count)?;
        match usize::try_from(count) {
            Ok(count) if (1..=MOST_THREADS).contains(&count) => {
                pool::set_num_threads(count);
                Ok(())
            }
            _ => Err(PyValueError::new_err(format!(
                "count must be from 1 to {MOST_THREADS}, got {count}"
            ))),
        }
    }

    /// Return the number of threads that one call may use.
    #[pyfunction]
    fn get_num_threads() -> usize {
        pool::num_threads()
    }

    /// Return the SIMD level in use: "scalar", "avx2", "avx512" or "neon".
    ///
    /// This is the highest level of this CPU, unless the environment variable GRADWIRE_SIMD sets a
    /// lower one.
    /// Results do not depend on it.
    #[pyfunction]
    fn simd_level() -> &'static str {
        simd::level().name()
    }

    /// Calls a function with another SIMD level in use in this thread, one that `simd_level` may return,
    /// and returns its result.
    #[pyfunction]
    #[pyo3(signature = (level, act, *args))]
    fn at_level<'py>(
        level: &str,
        act: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        simd::Level::from_name(level)
            .and_then(|level| simd::at_level(level, || act.call1(args)))
            .unwrap_or_else(|| {
                Err(PyValueError::new_err(format!("this CPU has no SIMD level {level:?}")))
            })
    }

    /// Return a message for each environment variable whose value is ignored.
    #[pyfunction]
    fn environment_complaints() -> Vec<String> {
        environment::complaints()
    }
}
