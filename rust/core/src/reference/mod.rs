//! Naive oracles: short, slow, and obviously right. Everything fast is judged by them.

mod largest;
pub mod sidco;

pub use largest::{above, largest};
