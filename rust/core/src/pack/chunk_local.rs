//! Chunk-local: positions counted from the start of their chunk, all in fields of one width.
//!
//! A section has the length of a chunk and the number of entries per chunk, four bytes each, and then
//! one field of `ceil(log2 length)` bits per entry. The chunk of an entry follows from its rank: every
//! chunk has the same number of entries, a short last one as many of them as fit.

use super::bits::{self, Fields};
use crate::{Error, Result};

/// Bytes before the fields.
pub(super) const PROLOGUE: usize = 8;

/// Consecutive positions in chunks of one length, with equally many entries in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunks {
    size: u32,
    k: u32,
}

impl Chunks {
    /// The longest chunk: its positions fit fields of 31 bits.
    pub const MAX_SIZE: u32 = 1 << 31;

    /// Chunks of `size` positions with `k` entries each, if that is at least one and not all.
    pub fn new(size: u32, k: u32) -> Option<Self> {
        (size <= Self::MAX_SIZE && 1 <= k && k < size).then_some(Self { size, k })
    }

    /// Positions in a chunk.
    pub fn size(self) -> u32 {
        self.size
    }

    /// Entries in a chunk.
    pub fn k(self) -> u32 {
        self.k
    }

    /// Entries of a tensor of `numel` elements.
    pub fn count(self, numel: u64) -> u64 {
        let (size, k) = (u64::from(self.size), u64::from(self.k));
        numel / size * k + (numel % size).min(k)
    }

    /// Whether these ascending positions, all below `numel`, are that many in every chunk.
    pub(super) fn hold(self, indices: &[u32], numel: u64) -> bool {
        // So many in all, and those of each rank inside their chunk: then there is no room for more.
        let inside = |(chunk, entries): (usize, &[u32])| {
            let start = chunk as u64 * u64::from(self.size);
            let end = start + u64::from(self.size);
            let (first, last) = (entries.first(), entries.last());
            first.is_some_and(|&p| start <= u64::from(p))
                && last.is_some_and(|&p| u64::from(p) < end)
        };
        indices.len() as u64 == self.count(numel)
            && indices.chunks(self.k as usize).enumerate().all(inside)
    }

    /// Bits of a field, 1 to 31.
    fn width(self) -> u8 {
        (self.size - 1).ilog2() as u8 + 1
    }

    pub(super) fn prologue(self) -> [u8; PROLOGUE] {
        let mut out = [0; PROLOGUE];
        out[..4].copy_from_slice(&self.size.to_le_bytes());
        out[4..].copy_from_slice(&self.k.to_le_bytes());
        out
    }

    /// The chunks that a section begins with.
    pub(super) fn read(section: &[u8]) -> Result<Self> {
        let word = |at: usize| section.get(at..)?.first_chunk().map(|w| u32::from_le_bytes(*w));
        let (Some(size), Some(k)) = (word(0), word(4)) else {
            return Err(Error::corrupt("the index section is too short for its chunks"));
        };
        Self::new(size, k)
            .ok_or_else(|| Error::corrupt(format!("chunks of {size} positions with {k} entries")))
    }
}

/// Exact length in bytes, for `count >= 1`.
pub(super) fn len(chunks: Chunks, count: u64) -> u64 {
    PROLOGUE as u64 + (count * u64::from(chunks.width())).div_ceil(8)
}

pub(super) fn encode(chunks: Chunks, indices: &[u32], out: &mut [u8]) {
    let (prologue, fields) = out.split_at_mut(PROLOGUE);
    prologue.copy_from_slice(&chunks.prologue());
    let local = indices.chunks(chunks.k as usize).enumerate().flat_map(|(chunk, entries)| {
        let start = chunk as u32 * chunks.size;
        entries.iter().map(move |&index| index - start)
    });
    bits::write_fields(fields, chunks.width(), local);
}

/// Reads positions off a section.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    fields: Fields<'a>,
    chunks: Chunks,
    numel: u64,
    /// Positions read so far, and how many of them are of the current chunk.
    rank: usize,
    within: u32,
    /// Where the current chunk begins, and one more than the last position of it, if there is one.
    start: u64,
    next: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(chunks: Chunks, bytes: &'a [u8], numel: u64, count: u64) -> Result<Self> {
        let fields = bytes.get(PROLOGUE..).unwrap_or_default();
        let used = count * u64::from(chunks.width());
        if !used.is_multiple_of(8) && fields.last().is_some_and(|&last| last >> (used % 8) != 0) {
            return Err(Error::corrupt("chunk-local padding is not zero"));
        }
        let fields = Fields::new(fields, chunks.width());
        Ok(Self { fields, chunks, numel, rank: 0, within: 0, start: 0, next: 0 })
    }

    pub(super) fn read(&mut self, out: &mut [u32]) -> Result<()> {
        let size = u64::from(self.chunks.size);
        let mut good = true;
        let mut slots = out.iter_mut();
        while !slots.as_slice().is_empty() {
            // The number of entries was checked: there are no more chunks than the tensor has.
            let end = self.numel.min(self.start + size);
            let here = (self.chunks.k - self.within) as usize;
            for slot in slots.by_ref().take(here) {
                let index = self.start + u64::from(self.fields.get(self.rank));
                good &= self.next <= index && index < end;
                *slot = index as u32;
                self.next = index + 1;
                self.rank += 1;
                self.within += 1;
            }
            if self.within == self.chunks.k {
                self.within = 0;
                self.start += size;
                self.next = self.start;
            }
        }
        if good {
            return Ok(());
        }
        Err(Error::corrupt("positions leave their chunk or do not ascend"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Coding, IndexCoding, Pattern, choose, decode_into, encode_into};
    use super::*;
    use crate::simd::Kernels;

    fn round_trip(chunks: Chunks, indices: &[u32], numel: u64) -> Vec<u8> {
        let coding = Coding::ChunkLocal(chunks);
        let mut bytes = vec![0xAA; len(chunks, indices.len() as u64) as usize];
        encode_into(coding, indices, numel, &mut bytes);
        assert_eq!(Chunks::read(&bytes), Ok(chunks));
        let mut out = vec![7];
        decode_into(Kernels::current(), coding, &bytes, numel, indices.len() as u64, &mut out)
            .unwrap();
        assert_eq!(out, indices);
        bytes
    }

    #[test]
    fn positions_are_fields_after_the_prologue() {
        let chunks = Chunks::new(6, 2).unwrap();
        // 20 positions: three whole chunks and one of two, which has room for two entries.
        let bytes = round_trip(chunks, &[1, 5, 6, 7, 12, 17, 18, 19], 20);
        assert_eq!(bytes[..8], [6, 0, 0, 0, 2, 0, 0, 0]);
        // 1, 5, 0, 1, 0, 5, 0, 1 with three bits each.
        assert_eq!(bytes[8..], [0b0010_1001_u8, 0b1000_0010, 0b0010_0010]);
    }

    #[test]
    fn widths_hold_the_last_position_of_a_chunk() {
        for (len, k) in [(2, 1), (3, 1), (3, 2), (64, 5), (65, 1), (100, 1), (4096, 64)] {
            let chunks = Chunks::new(len, k).unwrap();
            for numel in [1, u64::from(len) - 1, 1000, 10_001] {
                let last_of_each = (0..numel as u32).filter(|p| {
                    let (chunk, end) = (p / len, (p / len * len + len).min(numel as u32));
                    p >= &(end - k.min(end - chunk * len))
                });
                let indices: Vec<_> = last_of_each.collect();
                assert_eq!(indices.len() as u64, chunks.count(numel));
                round_trip(chunks, &indices, numel);
            }
        }
        assert_eq!((Chunks::new(5, 5), Chunks::new(5, 0), Chunks::new(1, 1)), (None, None, None));
        assert_eq!(Chunks::new(Chunks::MAX_SIZE, 1).unwrap().width(), 31);
        assert_eq!(Chunks::new(Chunks::MAX_SIZE + 1, 1), None);
    }

    #[test]
    fn only_supports_with_as_many_in_every_chunk_are_coded_so() {
        let pattern = Pattern::Chunks(Chunks::new(100, 1).unwrap());
        let full: Vec<u32> = (0..1000).map(|chunk| chunk * 100 + chunk * 37 % 100).collect();
        let (coding, len) = choose(IndexCoding::Auto, pattern, &full, 100_000);
        assert!(matches!(coding, Coding::ChunkLocal(_)));
        assert_eq!(len, 8 + 875);
        assert!(len < choose(IndexCoding::Auto, Pattern::Any, &full, 100_000).1);
        // One is missing, or is in the chunk of another.
        let mut moved = full.clone();
        moved[500] = 50_100;
        moved[501] = 50_101;
        for bad in [&full[1..], &full[..999], &moved] {
            let (coding, _) = choose(IndexCoding::Auto, pattern, bad, 100_000);
            assert!(!matches!(coding, Coding::ChunkLocal(_)));
        }
        let (coding, _) = choose(IndexCoding::Rice, pattern, &full, 100_000);
        assert!(matches!(coding, Coding::Rice { .. }));
    }

    #[test]
    fn what_leaves_its_chunk_is_refused() {
        let chunks = Chunks::new(100, 2).unwrap();
        let good = round_trip(chunks, &[3, 99, 100, 101, 200, 230], 231);
        let read = |bytes: &[u8], numel, count| {
            decode_into(
                Kernels::current(),
                Coding::ChunkLocal(chunks),
                bytes,
                numel,
                count,
                &mut Vec::new(),
            )
        };
        assert!(read(&good, 231, 6).is_ok());
        // The last is beyond the tensor; the number of entries is not that of the chunks.
        assert!(read(&good, 230, 6).is_err());
        assert!(read(&good, 231, 5).is_err() && read(&good, 301, 6).is_err());
        let mut fields = vec![3, 99, 0, 1, 0, 30];
        let write = |fields: &[u32]| {
            let mut bytes = good.clone();
            bits::write_fields(&mut bytes[8..], 7, fields.iter().copied());
            bytes
        };
        assert_eq!(write(&fields), good);
        for (at, value) in [(0, 99), (0, 100), (1, 100), (1, 127), (1, 3), (5, 31), (3, 0)] {
            let kept = std::mem::replace(&mut fields[at], value);
            assert!(read(&write(&fields), 231, 6).is_err(), "{at} {value}");
            fields[at] = kept;
        }
        let mut padded = good.clone();
        *padded.last_mut().unwrap() |= 0x80;
        assert!(read(&padded, 231, 6).is_err());
        assert!(read(&good[..good.len() - 1], 231, 6).is_err());
    }
}
