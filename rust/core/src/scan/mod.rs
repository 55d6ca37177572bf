//! The engine that reads a tensor: once, on any number of threads, gathering all that is asked for.
//!
//! | what | is |
//! |---|---|
//! | [`Tensor`] | what is read: a gradient, and what a memory adds to it |
//! | [`Update`] | the same, and what is written of the memory meanwhile |
//! | [`Request`] | what to gather: sums, and which entries to keep |
//! | [`Block`] | up to 2048 elements, and what it takes to work on them |
//! | [`Scanner`] | memory and kernels for reads; shares them between threads with [`Scanner::parallel`] |
//! | [`Candidates`] | the entries that were kept |
//!
//! A tensor is read in chunks of [`CHUNK`] elements, each in blocks that stay in the L1 cache while
//! one kernel after the other runs over them. What kind of memory it is, and of which type its
//! elements are, is decided once a block. Nothing that comes of a read depends on how many threads
//! took part: each has whole chunks, and what it finds is put together in their order.
//!
//! A sparsifier has a way to keep entries of its own in [`Entries`], if none that is there will do;
//! a memory has a variant of [`Past`] and of [`Next`] where it reads and writes as no other does.

mod bins;
mod block;
mod candidates;
mod chunks;
mod field;
mod next;
mod parallel;
mod request;
mod rounded;
mod sample;
mod scanner;
mod search;
mod sums;
mod sweep;
mod tensor;
mod update;

pub(crate) use bins::Bins;
pub(crate) use block::{Block, Scratch, steps};
pub(crate) use candidates::Candidates;
pub(crate) use chunks::{Chunks, LONGEST_CHUNK};
pub(crate) use field::{Field, STEP};
pub(crate) use next::{Filter, Next, is_streamed};
pub(crate) use parallel::{Share, Split};
pub(crate) use request::{Entries, Request};
pub(crate) use sample::{MOST_LOOKED_AT, jitter, magnitude_above};
pub(crate) use scanner::{Local, Scanner, Totals, Worker};
pub(crate) use sums::tail_of;
pub(crate) use tensor::{Past, Tensor};
pub(crate) use update::Update;

use crate::simd::{self, BLOCK};

/// Elements whose sums are added up before they join those of other chunks. A multiple of the
/// block, and what one thread takes at least.
pub(crate) const CHUNK: usize = 32 * BLOCK;

const _: () = assert!(CHUNK.is_multiple_of(BLOCK) && BLOCK.is_multiple_of(simd::LANES));

#[cfg(test)]
mod tests;
