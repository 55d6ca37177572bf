//! Buckets: many tensors one after another in one buffer, as DDP passes gradients on.
//!
//! A layer of a few thousand entries takes a few microseconds to encode, so the fixed cost of a call
//! must not be paid per layer. [`encode()`] writes the frames of a whole bucket one after another;
//! [`Average`] combines those of all ranks, and [`merge()`] the parts of them that one rank owns.

mod average;
mod encode;
mod merge;

pub use average::{Average, Mean, Output, Scratch as AverageScratch};
pub use encode::{Outcome, Piece, Scratch as EncodeScratch, encode};
pub use merge::{Merged, Owned, Scratch as MergeScratch, merge};

#[cfg(test)]
mod tests;
