//! Value sections whose codes are in coded blocks: [`floats`] behind the head of the section.
//!
//! An encode writes codes of a fixed length, which the memory of a codec takes them back from. What is sent is
//! that frame, made shorter here; a reader makes codes of it again.

use super::destination::Destination;
use super::header::{CHECKSUM, HEADER_LEN, Header};
use super::read::checksum;
use crate::pack::{floats, sequence};
use crate::pool::num_threads;
use crate::quantize::{Float, ValueCoding};
use crate::simd::Kernels;
use crate::{Error, Result, allocate};

/// The bytes before the blocks.
const HEAD: usize = 4;

/// Where the header has the length of the value section.
const VALUE_LEN: std::ops::Range<usize> = 40..48;

/// A frame of codes of a fixed length, and what becomes of its values. Memory to be used again.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    /// Empty where a frame has no values that may be put into blocks.
    pub frame: Vec<u8>,
    section: Vec<u8>,
}

impl Codes {
    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        self.frame.capacity() + self.section.capacity()
    }
}

/// Writes a frame of codes of a fixed length again with its values in coded blocks, or as it is where that
/// is no longer; unless it has more than `max_len` bytes then. Its length.
pub(crate) fn compress(
    kernels: &Kernels,
    Codes { frame, section: coded }: &mut Codes,
    coding: ValueCoding,
    max_len: Option<usize>,
    out: &mut Destination<'_>,
) -> Result<usize> {
    coded.clear();
    let values = value_start(frame)?;
    if let (Some(float), Some(codes)) = (coding.float(), frame.get(values + HEAD..)) {
        coded.extend(ValueCoding::head_of_blocks(float));
        write(kernels, float, codes, coded);
    }
    let section = if coded.is_empty() || values + coded.len() >= frame.len() {
        &frame[values..]
    } else {
        &*coded
    };
    let len = values + section.len();
    if max_len.is_some_and(|limit| len > limit) {
        return Ok(len);
    }
    let whole = out.place(len)?;
    whole[..values].copy_from_slice(&frame[..values]);
    whole[values..].copy_from_slice(section);
    whole[VALUE_LEN].copy_from_slice(&(section.len() as u64).to_le_bytes());
    let sum = checksum(whole);
    whole[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    Ok(len)
}

/// Where the value section of a frame begins.
fn value_start(frame: &[u8]) -> Result<usize> {
    let head = frame.first_chunk::<HEADER_LEN>();
    let lens = head.map(Header::section_lens);
    lens.map(|(index_len, _)| HEADER_LEN + index_len as usize)
        .ok_or_else(|| Error::argument("a frame has a header"))
}

fn write(kernels: &Kernels, float: Float, codes: &[u8], out: &mut Vec<u8>) {
    let (format, threads) = (float.format(), num_threads());
    if float == Float::Float32 {
        sequence::write(codes.as_chunks::<4>().0, threads, out, |codes, out| {
            floats::write(kernels, format, codes, out);
        });
    } else {
        sequence::write(codes.as_chunks::<2>().0, threads, out, |codes, out| {
            floats::write(kernels, format, codes, out);
        });
    }
}

/// Reads the codes of so many entries out of a section of coded blocks, in place of what `codes` held.
pub(super) fn expand(
    kernels: &Kernels,
    float: Float,
    section: &[u8],
    count: usize,
    codes: &mut Vec<u8>,
) -> Result<()> {
    let (format, threads) = (float.format(), num_threads());
    let blocks = section.get(HEAD..).unwrap_or_default();
    let width = if float == Float::Float32 { 4 } else { 2 };
    allocate::resize(codes, count * width)?;
    if width == 4 {
        sequence::read(blocks, threads, codes.as_chunks_mut::<4>().0, |_, bytes, out| {
            floats::read(kernels, format, bytes, out)
        })
    } else {
        sequence::read(blocks, threads, codes.as_chunks_mut::<2>().0, |_, bytes, out| {
            floats::read(kernels, format, bytes, out)
        })
    }
}
