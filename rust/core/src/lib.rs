//! Compression codecs for gradients: sparsifiers, quantizers, residuals and packed frames.
//!
//! A [`codec::Codec`] composes four small parts, each in its own module:
//!
//! | module | question it answers |
//! |---|---|
//! | [`sparsify`] | which entries go? |
//! | [`quantize`] | what values do they take? |
//! | [`memory`] | what happens to the rest? |
//! | [`pack`] | how are the positions coded? |
//!
//! [`bucket`] encodes and averages many tensors in one call. [`frame`] is the wire format, [`fit`] the statistics behind SIDCo, [`simd`] the kernels (the
//! only unsafe code), and [`mod@reference`] the naive oracles that judge all of them.

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
#[cfg(target_os = "linux")]
mod pages;
pub mod pool;
pub mod quantize;
pub mod reference;
pub mod rng;
mod room;
mod scan;
pub mod simd;
pub mod sparsify;

pub use dtype::{Dtype, Input};
pub use error::{Error, Result};
