//! Codes of packed weights by what a layer's inputs say about their errors.
//!
//! A layer has weights `W` and inputs whose Gram matrix is `G`. Of codes whose values are `q`, each row `w` has
//! the objective `(q - w) H (q - w)ᵀ`, the squared error of its output, where `H` is `G` and on its diagonal
//! `damp` times the mean of that.
//!
//! | file | what it does |
//! |---|---|
//! | [`error`] | what outputs lose |
//! | [`gram`] | checks weights and a Gram matrix |
//! | [`layer`] | a layer, and the grids and codes of rounding to the nearest |
//! | [`factor`] | `H = Lᵀ D L` |
//! | [`mod@gptq`] | codes in turn, each with what is left of those before it |
//! | [`mod@comq`] | coordinate descent on codes, steps and bases |
//! | [`objective`] | `H` in float32 |
//! | [`grids`] | the best step and base of a block, by its codes |
//! | [`magr`] | smaller largest weights, before they get codes |
//! | [`strip`] | rows beside one another |
//!
//! Values are multiplied by the power of two of the frame, so that grids are numbers of float16; `H` by one that
//! brings its diagonal to one. Rows are shared between threads in groups of strips, which use what a cache holds
//! of `H` together.

mod comq;
mod error;
mod factor;
mod gptq;
mod gram;
mod grids;
mod layer;
mod magr;
mod objective;
mod strip;
#[cfg(test)]
mod tests;

pub use comq::{Comq, Start, comq};
pub use error::errors;
pub use gptq::gptq;
pub use gram::check as check_gram;
pub use layer::{Layer, Solved};
pub use magr::Magr;
