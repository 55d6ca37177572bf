//! Naive oracles: short, slow, and obviously right. Everything fast is judged by them.

mod adacomp;
mod chunks;
mod draw;
mod estimated;
mod largest;
mod memory;
mod product;
mod quantize;
pub mod sidco;
pub mod solve;

pub use adacomp::adacomp;
pub use chunks::{largest_of_chunks, largest_of_tiles};
pub use draw::subset;
pub use estimated::{gaussian, redsync, sampled, two_sided};
pub use largest::{above, largest};
pub use memory::{AdamCorrection, Estimate, LowPass, MomentumCorrection, kept};
pub use product::{product, rounded_product};
pub use quantize::{sign_mean, sign_rms, ternary_scale, two_means};
