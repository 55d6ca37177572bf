//! Compression codecs for gradients: sparsifiers, quantizers, residuals and packed frames.
//!
//! A [`codec::Codec`] is composed of four parts, each in its own module:
//!
//! | module | purpose |
//! |---|---|
//! | [`sparsify`] | selects the entries to send |
//! | [`quantize`] | codes their values |
//! | [`memory`] | keeps what is not sent |
//! | [`pack`] | codes the positions |
//!
//! [`bucket`] encodes and averages many tensors in one call. [`packed`] are weights that are multiplied as they
//! are packed, and [`solve`] finds codes for them by what a layer's inputs say. [`frame`] is the wire format, [`fit`] the
//! statistics for SIDCo, [`simd`] the kernels (the only unsafe code), and [`mod@reference`] the naive
//! implementations that tests compare with.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "no frame depends on what tests expect within bounds"
    )
)]

mod allocate;
pub mod bucket;
mod buffer;
pub mod codec;
pub mod dtype;
pub mod environment;
pub mod error;
pub mod fit;
pub mod frame;
pub mod memory;
pub mod pack;
pub mod packed;
#[cfg(all(target_os = "linux", not(miri)))]
mod pages;
pub mod part;
pub mod pool;
pub mod quantize;
pub mod reference;
pub mod rng;
mod scan;
pub mod simd;
pub mod solve;
pub mod sparsify;

pub use dtype::{Dtype, Input};
pub use error::{Error, Result};

// Bytes of tensors of up to 2^32 - 1 elements, and of their frames, are counted in usize.
const _: () = assert!(usize::BITS == 64, "gradwire needs a target with 64-bit addresses");
