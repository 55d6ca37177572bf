//! Naive oracles: short, slow, and obviously right. Everything fast is judged by them.

mod adacomp;
mod estimated;
mod largest;
mod memory;
pub mod sidco;

pub use adacomp::adacomp;
pub use estimated::{gaussian, redsync, sampled, two_sided};
pub use largest::{above, largest};
pub use memory::{LowPass, MomentumCorrection};
