//! Reads positions block by block, so that no reader has to hold all of them.

use std::ops::Range;

use super::{Coding, bitmap, check_len, chunk_local, draw, elias_fano, rice};
use crate::simd::Kernels;
use crate::{Result, allocate};

/// Positions in a block: a mebibyte of them.
pub(crate) const LONGEST_BLOCK: usize = 1 << 18;

/// A reader of a section, from its beginning on.
#[derive(Clone)]
pub(crate) struct Blocks<'a> {
    reader: Reader<'a>,
    left: u64,
}

#[derive(Clone)]
enum Reader<'a> {
    EliasFano(elias_fano::Reader<'a>),
    Rice(rice::Reader<'a>),
    Bitmap(bitmap::Reader<'a>),
    ChunkLocal(chunk_local::Reader<'a>),
    /// One run of positions after the other.
    Runs([Range<u32>; 2]),
    /// What was drawn.
    List(&'a [u32]),
}

impl<'a> Blocks<'a> {
    /// The reader of a section that has as many positions as it should. Positions that are drawn are
    /// put into `drawn`, as bits where that takes less memory: an eighth of a byte for each element.
    pub fn new(
        coding: Coding,
        bytes: &'a [u8],
        (numel, count): (u64, u64),
        kernels: &Kernels,
        drawn: &'a mut Vec<u32>,
    ) -> Result<Self> {
        check_len(coding, numel, count, bytes.len() as u64)?;
        // `check_len` has bounded `numel`.
        let reader = match coding {
            _ if count == 0 => Reader::Runs([0..0, 0..0]),
            Coding::None => Reader::Runs([0..numel as u32, 0..0]),
            Coding::EliasFano { low_bits } => {
                Reader::EliasFano(elias_fano::Reader::new(low_bits, bytes, numel, count)?)
            }
            Coding::Rice { bits } => Reader::Rice(rice::Reader::new(bits, bytes, numel, count)?),
            Coding::Bitmap => Reader::Bitmap(bitmap::Reader::new(bytes, numel, count)?),
            Coding::ChunkLocal(chunks) => {
                Reader::ChunkLocal(chunk_local::Reader::new(chunks, bytes, numel, count)?)
            }
            Coding::Seeded(draw) => match draw.stored(kernels, numel, count, drawn)? {
                draw::Stored::Runs(runs) => Reader::Runs(runs),
                draw::Stored::List => Reader::List(drawn),
                draw::Stored::Bits => {
                    let bits = bytemuck::cast_slice(drawn);
                    Reader::Bitmap(bitmap::Reader::new(bits, numel, count)?)
                }
            },
        };
        Ok(Self { reader, left: count })
    }

    /// The next positions, as many as `out` has room for, which are there.
    pub fn read(&mut self, out: &mut [u32]) -> Result<()> {
        self.left -= out.len() as u64;
        match &mut self.reader {
            Reader::EliasFano(reader) => reader.read(out),
            Reader::Rice(reader) => reader.read(out),
            Reader::Bitmap(reader) => {
                reader.read(out);
                Ok(())
            }
            Reader::ChunkLocal(reader) => reader.read(out),
            Reader::Runs([first, second]) => {
                let positions = first.by_ref().chain(second);
                out.iter_mut().zip(positions).for_each(|(slot, position)| *slot = position);
                Ok(())
            }
            Reader::List(list) => {
                let (next, rest) = list.split_at(out.len());
                out.copy_from_slice(next);
                *list = rest;
                Ok(())
            }
        }
    }

    /// The next block in place of what `out` held; whether there was one.
    pub fn next_block(&mut self, out: &mut Vec<u32>) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let len = self.left.min(LONGEST_BLOCK as u64) as usize;
        allocate::resize(out, len)?;
        self.read(out)?;
        Ok(true)
    }
}
