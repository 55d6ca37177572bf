//! Blocks of a long tensor that are coded one by one, each behind its length, so that threads share them.
//!
//! | bytes | content, block after block |
//! |---|---|
//! | 4 | the length of the block in bytes |
//! | | the block |

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::huffman::{BLOCK, split};
use crate::{Error, Result, pool};

/// Blocks of [`BLOCK`] values for each thread until they are put together.
pub const RUN: usize = 16;

/// Blocks that a thread has written, one after the other, and which and where they are.
#[derive(Debug, Default, Clone)]
struct Run {
    bytes: Vec<u8>,
    blocks: Vec<(usize, Range<usize>)>,
}

thread_local! {
    /// What threads write for this one, to be used again: four megabytes for each of them at most.
    static RUNS: RefCell<Vec<Run>> = const { RefCell::new(Vec::new()) };
}

/// Appends blocks of [`BLOCK`] values each, but for the last one; `code` appends one to what it is given.
pub fn write<T: Sync>(
    values: &[T],
    threads: usize,
    out: &mut Vec<u8>,
    code: impl Fn(&[T], &mut Vec<u8>) + Sync,
) {
    let number = values.len().div_ceil(BLOCK);
    let code = |i: usize, coded: &mut Vec<u8>| {
        let rest = &values[i * BLOCK..];
        code(&rest[..rest.len().min(BLOCK)], coded);
    };
    write_each(number, RUN, threads, code, |block| out.extend_from_slice(block));
}

/// Hands on so many blocks, one after the other; `code` appends one, by its number, to what it is given. A thread
/// writes `run` blocks, which have to fit into a few megabytes, before they are handed on.
pub fn write_each(
    number: usize,
    run: usize,
    threads: usize,
    code: impl Fn(usize, &mut Vec<u8>) + Sync,
    mut put: impl FnMut(&[u8]),
) {
    let threads = threads.min(number);
    let together = if threads < 2 { 1 } else { threads * run };
    let mut runs = RUNS.take();
    runs.resize(threads.max(runs.len()), Run::default());
    for first in (0..number).step_by(together) {
        let (next, end) = (AtomicUsize::new(first), number.min(first + together));
        pool::share(threads, threads, 1, &mut runs[..threads], &|_, runs| {
            for run in runs {
                run.write(&next, end, &code);
            }
        });
        let mut order: Vec<&[u8]> = vec![&[]; end - first];
        for run in &runs[..threads] {
            for (i, place) in &run.blocks {
                order[i - first] = &run.bytes[place.clone()];
            }
        }
        order.into_iter().for_each(&mut put);
    }
    RUNS.set(runs);
}

impl Run {
    /// Writes one block after the other, as long as there are any that no other thread has begun.
    fn write(&mut self, next: &AtomicUsize, end: usize, code: &impl Fn(usize, &mut Vec<u8>)) {
        let Self { bytes, blocks } = self;
        bytes.clear();
        blocks.clear();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= end {
                return;
            }
            let start = bytes.len();
            bytes.extend([0; 4]);
            code(i, bytes);
            let len = bytes.len() - start - 4;
            bytes[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
            blocks.push((i, start..bytes.len()));
        }
    }
}

/// The CRC-32C of bytes that follow those with the CRC-32C `before`; 0 of none.
pub fn checksum(before: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

/// Reads as many values as `out` has, of nothing but their blocks; `decode` returns what follows one.
///
/// After an error `out` holds anything.
pub fn read<T: Send>(
    bytes: &[u8],
    threads: usize,
    out: &mut [T],
    decode: impl for<'a> Fn(usize, &'a [u8], &mut [T]) -> Result<&'a [u8]> + Sync,
) -> Result<()> {
    let rest = read_some(bytes, threads, BLOCK, out, decode)?;
    if rest.is_empty() {
        return Ok(());
    }
    Err(Error::corrupt(format!("{} bytes follow the last block", rest.len())))
}

/// The same of blocks of so many values, and returns what follows the blocks.
pub fn read_some<'b, T: Send>(
    bytes: &'b [u8],
    threads: usize,
    block: usize,
    out: &mut [T],
    decode: impl for<'a> Fn(usize, &'a [u8], &mut [T]) -> Result<&'a [u8]> + Sync,
) -> Result<&'b [u8]> {
    let number = out.len().div_ceil(block);
    let (blocks, rest) = split_blocks(bytes, number)?;
    let decode = |i: usize, out: &mut [T]| {
        let rest = decode(i, blocks[i], out)?;
        if rest.is_empty() {
            return Ok(());
        }
        Err(Error::corrupt(format!("{} bytes follow the codes of a block", rest.len())))
    };
    // Each thread takes the next block when it is done with one: no other waits for the slowest.
    let (next, failed) = (Mutex::new(out.chunks_mut(block).enumerate()), OnceLock::new());
    let take = || next.lock().ok()?.next();
    pool::share(threads, threads.min(number), 1, &mut vec![(); threads], &|_, _| {
        while let Some((i, out)) = take() {
            if let Err(error) = decode(i, out) {
                let _ = failed.set(error);
            }
        }
    });
    failed.into_inner().map_or(Ok(rest), Err)
}

/// So many blocks without their lengths, and what follows them.
pub fn split_blocks(mut bytes: &[u8], number: usize) -> Result<(Vec<&[u8]>, &[u8])> {
    // Each takes its four bytes, whatever `number` says.
    let mut blocks = Vec::with_capacity(number.min(bytes.len() / 4));
    for _ in 0..number {
        let (len, rest) = split(bytes, 4)?;
        let len = len.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let (block, rest) = split(rest, len)?;
        blocks.push(block);
        bytes = rest;
    }
    Ok((blocks, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(values: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(values);
    }

    fn taken<'a>(_: usize, bytes: &'a [u8], out: &mut [u8]) -> Result<&'a [u8]> {
        let (own, rest) = split(bytes, out.len())?;
        out.copy_from_slice(own);
        Ok(rest)
    }

    #[test]
    fn blocks_are_the_same_and_come_back_with_any_number_of_threads() {
        for len in [0, 1, BLOCK, BLOCK + 1, 5 * BLOCK - 3] {
            let values: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut once = Vec::new();
            write(&values, 1, &mut once, plain);
            assert_eq!(once.len(), len + 4 * len.div_ceil(BLOCK));
            for threads in [1, 2, 7] {
                let (mut bytes, mut out) = (Vec::new(), vec![0; len]);
                write(&values, threads, &mut bytes, plain);
                assert_eq!(bytes, once);
                read(&bytes, threads, &mut out, taken).unwrap();
                assert_eq!(out, values);
            }
        }
    }

    #[test]
    fn lengths_that_do_not_add_up_are_errors() {
        let mut bytes = Vec::new();
        write(&[1_u8, 2, 3], 1, &mut bytes, plain);
        let mut out = [0; 3];
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end], 1, &mut out, taken).is_err());
        }
        assert!(read(&[&*bytes, &[0]].concat(), 1, &mut out, taken).is_err());
        // A block that is longer than its codes.
        assert!(read(&[4, 0, 0, 0, 1, 2, 3, 4], 1, &mut out, taken).is_err());
        assert!(read(&[255; 8], 1, &mut out, taken).is_err());
    }
}
