//! Blocks of a long tensor that are coded one by one, each behind its length, so that threads share them.
//!
//! | bytes | content, block after block |
//! |---|---|
//! | 4 | the length of the block in bytes |
//! | | the block |

use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

use super::huffman::{BLOCK, split};
use crate::{Error, Result, pool};

/// Blocks that a thread writes before they are put together with those of others.
const RUN: usize = 4;

thread_local! {
    /// What threads write for this one, to be used again: a megabyte for each of them at most.
    static RUNS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Appends blocks of [`BLOCK`] values each, but for the last one; `code` appends one to what it is given.
pub fn write<T: Sync>(
    values: &[T],
    threads: usize,
    out: &mut Vec<u8>,
    code: impl Fn(&[T], &mut Vec<u8>) + Sync,
) {
    let number = values.len().div_ceil(BLOCK);
    write_each(number, threads, out, |i, coded| {
        let rest = &values[i * BLOCK..];
        code(&rest[..rest.len().min(BLOCK)], coded);
    });
}

/// Appends so many blocks; `code` appends one, by its number, to what it is given.
pub fn write_each(
    number: usize,
    threads: usize,
    out: &mut Vec<u8>,
    code: impl Fn(usize, &mut Vec<u8>) + Sync,
) {
    let write = |blocks: Range<usize>, out: &mut Vec<u8>| {
        for i in blocks {
            let start = out.len();
            out.extend([0; 4]);
            code(i, out);
            let len = out.len() - start - 4;
            out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        }
    };
    if threads < 2 || number < 2 {
        return write(0..number, out);
    }
    // Some blocks for each thread at a time, which the cache may hold until they are put together.
    let (mut runs, mut first) = (RUNS.take(), 0);
    runs.resize(threads, Vec::new());
    while first < number {
        let each = (number - first).div_ceil(threads).min(RUN);
        pool::share(threads, threads, 1, &mut runs, &|range, runs| {
            for (i, run) in range.zip(runs) {
                run.clear();
                let start = number.min(first + i * each);
                write(start..number.min(start + each), run);
            }
        });
        for run in &runs {
            out.extend_from_slice(run);
        }
        first += threads * each;
    }
    RUNS.set(runs);
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
    let rest = read_some(bytes, threads, out, decode)?;
    if rest.is_empty() {
        return Ok(());
    }
    Err(Error::corrupt(format!("{} bytes follow the last block", rest.len())))
}

/// The same, and returns what follows the blocks.
pub fn read_some<'b, T: Send>(
    mut bytes: &'b [u8],
    threads: usize,
    out: &mut [T],
    decode: impl for<'a> Fn(usize, &'a [u8], &mut [T]) -> Result<&'a [u8]> + Sync,
) -> Result<&'b [u8]> {
    let number = out.len().div_ceil(BLOCK);
    // Each takes its four bytes, whatever `number` says.
    let mut blocks = Vec::with_capacity(number.min(bytes.len() / 4));
    for _ in 0..number {
        let (len, rest) = split(bytes, 4)?;
        let len = len.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let (block, rest) = split(rest, len)?;
        blocks.push(block);
        bytes = rest;
    }
    let failed = OnceLock::new();
    pool::share(threads, number, BLOCK, out, &|range, out| {
        let done = range.zip(out.chunks_mut(BLOCK)).try_for_each(|(i, out)| {
            let rest = decode(i, blocks[i], out)?;
            if rest.is_empty() {
                return Ok(());
            }
            Err(Error::corrupt(format!("{} bytes follow the codes of a block", rest.len())))
        });
        if let Err(error) = done {
            let _ = failed.set(error);
        }
    });
    failed.into_inner().map_or(Ok(bytes), Err)
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
