//! Patches: what makes a tensor of another, as blocks of [`differences`] with checksums of both.
//!
//! | bytes | content, block after block |
//! |---|---|
//! | 4 | the length of what follows |
//! | 4 each | the CRC-32C of the block's floats in the base, and of those in the result |
//! | | the block, never of all floats |
//!
//! Entries of 8 bits become 16 with zeros above: -1.0 as `float8_e4m3fn`, 0xB8, is 0x00B8.

use std::sync::OnceLock;

use super::differences::{self, BLOCK, Leavers, WHOLE};
use super::floats::{Bits, Format};
use super::huffman::split;
use super::sequence::{self, checksum};
use crate::simd::Kernels;
use crate::{Error, Result, pool};

/// Bytes of both checksums.
const CHECKSUMS: usize = 8;

/// The format of entries, and the bytes of one: 1, 2 or 4.
#[derive(Debug, Clone, Copy)]
pub struct Entries {
    /// Of those of 1 byte, [`Format::BYTE`].
    pub format: Format,
    /// How many bytes each has.
    pub size: usize,
}

impl Entries {
    /// Bytes of a block.
    fn block(self) -> usize {
        BLOCK * self.size
    }
}

/// Hands on the blocks of a patch, one after the other. Both tensors are as long.
pub fn write(entries: Entries, values: &[u8], base: &[u8], threads: usize, put: impl FnMut(&[u8])) {
    let (kernels, size) = (Kernels::current(), entries.block());
    let code = |i: usize, out: &mut Vec<u8>| {
        let block = i * size..values.len().min((i + 1) * size);
        let (values, base) = (&values[block.clone()], &base[block]);
        out.extend(checksum(0, base).to_le_bytes());
        out.extend(checksum(0, values).to_le_bytes());
        match entries.size {
            1 => write_block(kernels, entries, &widened(values), &widened(base), out),
            2 => write_block::<[u8; 2]>(
                kernels,
                entries,
                values.as_chunks().0,
                base.as_chunks().0,
                out,
            ),
            _ => write_block::<[u8; 4]>(
                kernels,
                entries,
                values.as_chunks().0,
                base.as_chunks().0,
                out,
            ),
        }
    };
    sequence::write_each(values.len().div_ceil(size), 1, threads, code, put);
}

fn write_block<T: Bits>(
    kernels: &Kernels,
    entries: Entries,
    values: &[T],
    base: &[T],
    out: &mut Vec<u8>,
) {
    differences::write(kernels, entries.format, values, base, false, out);
}

fn widened(bytes: &[u8]) -> Vec<[u8; 2]> {
    bytes.iter().map(|byte| [*byte, 0]).collect()
}

/// Whether a patch was made from this base; and how many bytes its blocks are, which others may follow.
pub fn check(entries: Entries, patch: &[u8], base: &[u8], threads: usize) -> Result<(bool, usize)> {
    let size = entries.block();
    let (blocks, rest) = sequence::split_blocks(patch, base.len().div_ceil(size))?;
    let mut same = vec![false; blocks.len()];
    pool::share(threads, blocks.len(), 1, &mut same, &|numbers, same| {
        for (i, same) in numbers.zip(same) {
            let bytes = &base[i * size..base.len().min((i + 1) * size)];
            let expected = blocks[i].get(..4);
            *same = expected == Some(&checksum(0, bytes).to_le_bytes());
        }
    });
    Ok((same.iter().all(|same| *same), patch.len() - rest.len()))
}

/// What is needed to undo a patch: of each block that was applied, the floats that left their class.
pub type Undo = Vec<Option<Leavers<[u8; 4]>>>;

/// Makes the result of a base, and returns how many bytes the blocks are, and what undoes that.
///
/// After an error `out` is as it was.
pub fn apply(
    entries: Entries,
    patch: &[u8],
    out: &mut [u8],
    threads: usize,
) -> Result<(usize, Undo)> {
    let size = entries.block();
    let done: Vec<OnceLock<Leavers<[u8; 4]>>> = out.chunks(size).map(|_| OnceLock::new()).collect();
    let applied = sequence::read_some(patch, threads, size, out, |i, bytes, out| {
        let (checksums, block) = split(bytes, CHECKSUMS)?;
        let (rest, leavers) = read_block(entries, block, out)?;
        let same = checksum(0, out).to_le_bytes() == checksums[4..];
        let _ = done[i].set(leavers);
        if same { Ok(rest) } else { Err(Error::corrupt("a block does not make what it should")) }
    });
    let undo = done.into_iter().map(OnceLock::into_inner).collect();
    match applied {
        Ok(rest) => Ok((patch.len() - rest.len(), undo)),
        Err(error) => {
            self::undo(entries, patch, &undo, out)?;
            Err(error)
        }
    }
}

/// Makes the base again of the result that a patch has made.
pub fn undo(entries: Entries, patch: &[u8], undo: &Undo, out: &mut [u8]) -> Result<()> {
    // Of a patch whose blocks do not follow one another, none was applied.
    let blocks = sequence::split_blocks(patch, undo.len()).unwrap_or_default().0;
    for ((out, undo), block) in out.chunks_mut(entries.block()).zip(undo).zip(blocks) {
        if let Some(leavers) = undo {
            undo_block(entries, &block[CHECKSUMS..], leavers, out)?;
        }
    }
    Ok(())
}

fn read_block<'a>(
    Entries { format, size }: Entries,
    block: &'a [u8],
    out: &mut [u8],
) -> Result<(&'a [u8], Leavers<[u8; 4]>)> {
    if block.first() == Some(&WHOLE) {
        return Err(Error::corrupt("a block of a patch does not lead back"));
    }
    let kernels = Kernels::current();
    let wide = |leavers: Leavers<[u8; 2]>| {
        leavers.into_iter().map(|(place, [low, high])| (place, [low, high, 0, 0])).collect()
    };
    match size {
        1 => {
            let mut halves = widened(out);
            let (rest, leavers) = differences::read(kernels, format, block, &mut halves)?;
            if halves.iter().any(|[_, above]| *above != 0) {
                return Err(Error::corrupt("a step leads beyond all bytes"));
            }
            narrow(&halves, out);
            Ok((rest, wide(leavers)))
        }
        2 => {
            let (rest, leavers) =
                differences::read(kernels, format, block, out.as_chunks_mut::<2>().0)?;
            Ok((rest, wide(leavers)))
        }
        _ => differences::read(kernels, format, block, out.as_chunks_mut::<4>().0),
    }
}

fn undo_block(
    Entries { format, size }: Entries,
    block: &[u8],
    leavers: &[(u32, [u8; 4])],
    out: &mut [u8],
) -> Result<()> {
    let kernels = Kernels::current();
    let halves: Leavers<[u8; 2]> =
        leavers.iter().map(|(place, [low, high, ..])| (*place, [*low, *high])).collect();
    match size {
        1 => {
            let mut wide = widened(out);
            differences::undo(kernels, format, block, &halves, &mut wide)?;
            narrow(&wide, out);
            Ok(())
        }
        2 => differences::undo(kernels, format, block, &halves, out.as_chunks_mut().0),
        _ => differences::undo(kernels, format, block, leavers, out.as_chunks_mut().0),
    }
}

fn narrow(halves: &[[u8; 2]], out: &mut [u8]) {
    for (out, [byte, _]) in out.iter_mut().zip(halves) {
        *out = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Entries = Entries { format: Format::BFLOAT16, size: 2 };
    const BYTE: Entries = Entries { format: Format::BYTE, size: 1 };

    fn bytes(len: usize, seed: u32) -> Vec<u8> {
        (0..len as u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b1).wrapping_add(seed) >> 24) as u8)
            .collect()
    }

    /// A tensor in which some entries have moved by a step.
    fn moved(base: &[u8], size: usize) -> Vec<u8> {
        let mut values = base.to_vec();
        for (i, entry) in values.chunks_mut(size).enumerate().filter(|(i, _)| i % 41 == 3) {
            entry[0] ^= if i % 2 == 0 { 1 } else { 3 };
        }
        values
    }

    fn written(entries: Entries, values: &[u8], base: &[u8], threads: usize) -> Vec<u8> {
        let mut patch = Vec::new();
        write(entries, values, base, threads, |block| patch.extend_from_slice(block));
        patch
    }

    #[test]
    fn a_patch_leads_from_its_base_to_the_result_and_back() {
        for entries in [BYTE, HALF, Entries { format: Format::FLOAT32, size: 4 }] {
            for count in [0, 1, 5000, BLOCK + 9] {
                let base = bytes(count * entries.size, 1);
                let values = moved(&base, entries.size);
                let patch = written(entries, &values, &base, 1);
                assert_eq!(written(entries, &values, &base, 2), patch);
                let mut out = base.clone();
                assert_eq!(check(entries, &patch, &out, 2).unwrap(), (true, patch.len()));
                let (len, back) = apply(entries, &patch, &mut out, 2).unwrap();
                assert!(len == patch.len() && out == values);
                assert!(!check(entries, &patch, &out, 1).unwrap().0 || values == base);
                undo(entries, &patch, &back, &mut out).unwrap();
                assert!(out == base);
            }
        }
    }

    #[test]
    fn an_error_in_the_last_block_leaves_all_blocks_as_they_were() {
        let base = bytes(2 * BLOCK + 18, 5);
        let patch = written(HALF, &moved(&base, 2), &base, 1);
        for threads in [1, 2] {
            for place in [patch.len() - 1, patch.len() - 9, patch.len() - 14] {
                let mut forged = patch.clone();
                forged[place] ^= 1;
                let mut out = base.clone();
                assert!(apply(HALF, &forged, &mut out, threads).is_err(), "{place}");
                assert!(out == base);
            }
        }
    }

    #[test]
    fn a_block_that_does_not_lead_back_is_refused() {
        let (base, values) = (bytes(40, 1), bytes(40, 2));
        let mut block = Vec::new();
        let halves = |bytes: &[u8]| bytes.as_chunks::<2>().0.to_vec();
        differences::write(
            Kernels::current(),
            HALF.format,
            &[[0; 2]; 20],
            &halves(&base),
            true,
            &mut block,
        );
        assert_eq!(block[0], WHOLE);
        let mut patch = (8 + block.len() as u32).to_le_bytes().to_vec();
        patch.extend([&base, &values].map(|bytes| checksum(0, bytes).to_le_bytes()).as_flattened());
        patch.extend(block);
        let mut out = base.clone();
        assert!(apply(HALF, &patch, &mut out, 1).is_err());
        assert!(out == base);
    }
}
