//! Index coding: strictly ascending positions as bits, close to the information-theoretic bound. And
//! [`huffman`], which codes symbols, [`floats`] by that, [`differences`] of those, and a [`patch`] of
//! such.
//!
//! Each coding is a bit stream, least significant bit first, zero-padded to a whole byte; some begin
//! with a few bytes of parameters:
//!
//! | coding | stream |
//! |---|---|
//! | [`Coding::EliasFano`] | low bits of each position, then the high parts as one unary vector |
//! | [`Coding::Rice`] | low bits of each gap, then the high parts as one unary vector |
//! | [`Coding::Bitmap`] | one bit per element |
//! | [`Coding::None`] | nothing: every position is present, or none is |
//! | [`Coding::ChunkLocal`] | positions within their chunk, in fields of one width |
//! | [`Coding::Seeded`] | only a key, with which readers draw the positions again |
//!
//! Rice stores its low bits and its unary codes separately, unlike the interleaved textbook form. The
//! length is the same to the bit, but a code can be read before the end of the previous one is known,
//! so Rice reads as fast as Elias-Fano.
//!
//! With the same number of low bits Rice is never longer than Elias-Fano: the sum of `gap >> b` is at
//! most `(sum of gaps) >> b`. The advantages of Elias-Fano are random access and a length that depends
//! only on the numbers of elements and entries.

mod bitmap;
mod bits;
mod blocks;
mod chunk_local;
pub mod differences;
mod draw;
mod elias_fano;
pub mod floats;
pub mod huffman;
mod ids;
pub mod patch;
mod repeats;
mod rice;
pub mod sequence;
mod steps;

pub(crate) use blocks::{Blocks, LONGEST_BLOCK};
pub use chunk_local::Chunks;
pub use draw::{Draw, DrawKind};

use crate::simd::Kernels;
use crate::{Error, Result, allocate};

/// Widest low part a coding may have. Positions are 32-bit, and at width 31 the high part is a bit.
pub const MAX_LOW_BITS: u8 = 31;

/// Most elements a tensor may have: positions, and their number, fit 32 bits.
pub const MAX_NUMEL: u64 = u32::MAX as u64;

/// How a codec may code positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IndexCoding {
    /// The smallest of the others for each frame.
    #[default]
    Auto,
    /// Elias-Fano: fixed low bits and a unary high-bit vector.
    EliasFano,
    /// Rice-coded gaps.
    Rice,
    /// One bit an element.
    Bitmap,
}

/// How the positions of one frame are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// Elias-Fano with this many low bits (P. Elias, "Efficient Storage and Retrieval by Content
    /// and Address of Static Files", J. ACM 1974; R. Fano, MIT Project MAC memo 61, 1971).
    EliasFano {
        /// Width of the low part, at most [`MAX_LOW_BITS`].
        low_bits: u8,
    },
    /// Gaps with this many low bits (R. Rice and J. Plaunt, "Adaptive Variable-Length Coding for
    /// Efficient Compression of Spacecraft Television Data", IEEE Trans. Commun. 1971).
    Rice {
        /// Width of the low part, at most [`MAX_LOW_BITS`].
        bits: u8,
    },
    /// One bit an element.
    Bitmap,
    /// No bits: the frame is dense and holds every position.
    None,
    /// Positions in their chunk.
    ChunkLocal(Chunks),
    /// No bits but a key: the positions are drawn again.
    Seeded(Draw),
}

impl Coding {
    /// The chunk-local coding whose parameters a section begins with.
    pub(crate) fn read_chunks(section: &[u8]) -> Result<Self> {
        Chunks::read(section).map(Self::ChunkLocal)
    }

    /// The seeded coding that a section is.
    pub(crate) fn read_draw(section: &[u8]) -> Result<Self> {
        Draw::read(section).map(Self::Seeded)
    }
}

/// What a writer knows of its positions beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pattern {
    /// Nothing.
    #[default]
    Any,
    /// As a rule there are equally many in all chunks; not so where a chunk lacks entries to send.
    Chunks(Chunks),
    /// They are these.
    Drawn(Draw),
}

/// The smallest coding of these positions that is allowed, and its exact length in bytes.
///
/// A full support is always [`Coding::None`]. Equal lengths go to the bitmap, then to Elias-Fano,
/// then to Rice. Chunk-local and seeded are allowed by [`IndexCoding::Auto`] where the support is
/// known to be such. Costs a pass over the indices where Rice is allowed, and nothing that grows with
/// them otherwise.
///
/// `indices` must be strictly ascending and below `numel`, and `numel` at most [`MAX_NUMEL`].
pub fn choose(
    allowed: IndexCoding,
    pattern: Pattern,
    indices: &[u32],
    numel: u64,
) -> (Coding, usize) {
    let count = indices.len() as u64;
    if count == numel {
        return (Coding::None, 0);
    }
    let by_bitmap = || (Coding::Bitmap, if count == 0 { 0 } else { bitmap::len(numel) });
    let by_elias_fano = || {
        let (low_bits, len) = elias_fano::best(numel, count);
        (Coding::EliasFano { low_bits }, len)
    };
    let by_rice = || {
        let (bits, len) = rice::best(indices);
        (Coding::Rice { bits }, len)
    };
    match allowed {
        IndexCoding::EliasFano => by_elias_fano(),
        IndexCoding::Rice => by_rice(),
        IndexCoding::Bitmap => by_bitmap(),
        IndexCoding::Auto => {
            let shorter = |a: (Coding, usize), b: (Coding, usize)| if b.1 < a.1 { b } else { a };
            let shortest = shorter(shorter(by_bitmap(), by_elias_fano()), by_rice());
            match pattern {
                _ if count == 0 => shortest,
                Pattern::Chunks(chunks) if chunks.hold(indices, numel) => {
                    let len = chunk_local::len(chunks, count) as usize;
                    shorter(shortest, (Coding::ChunkLocal(chunks), len))
                }
                Pattern::Drawn(draw) => shorter(shortest, (Coding::Seeded(draw), draw::LEN)),
                _ => shortest,
            }
        }
    }
}

/// Longest that [`choose`] can come out, in bytes, over all supports of `count` positions.
///
/// Never falls as `count` grows, but for the full support, which takes no bytes.
pub fn max_len(allowed: IndexCoding, pattern: Pattern, numel: u64, count: u64) -> usize {
    if count == 0 || count >= numel {
        return 0;
    }
    let longest = max_len_of_any(allowed, numel, count);
    match (allowed, pattern) {
        (IndexCoding::Auto, Pattern::Drawn(_)) => longest.min(draw::LEN),
        _ => longest,
    }
}

fn max_len_of_any(allowed: IndexCoding, numel: u64, count: u64) -> usize {
    match allowed {
        IndexCoding::Bitmap => bitmap::len(numel),
        // Rice at the width of the best Elias-Fano is no longer than it.
        IndexCoding::EliasFano | IndexCoding::Rice => elias_fano::best(numel, count).1,
        IndexCoding::Auto => bitmap::len(numel).min(elias_fano::best(numel, count).1),
    }
}

/// Writes the positions over the whole of `out`, which is as long as [`choose`] said.
///
/// # Panics
///
/// If `coding`, `indices`, `numel` and the length of `out` do not belong together.
pub fn encode_into(coding: Coding, indices: &[u32], numel: u64, out: &mut [u8]) {
    assert!(
        lengths(coding, numel, indices.len() as u64).contains(&(out.len() as u64)),
        "{} bytes are no length of {} positions out of {numel} as {coding:?}",
        out.len(),
        indices.len(),
    );
    if indices.is_empty() {
        return;
    }
    match coding {
        Coding::EliasFano { low_bits } => elias_fano::encode(low_bits, indices, out),
        Coding::Rice { bits } => rice::encode(bits, indices, out),
        Coding::Bitmap => bitmap::encode(indices, out),
        Coding::None => {}
        Coding::ChunkLocal(chunks) => chunk_local::encode(chunks, indices, out),
        Coding::Seeded(draw) => out.copy_from_slice(&draw.to_bytes()),
    }
}

/// Reads exactly `count` positions, strictly ascending and below `numel`, into `out` (replaced).
///
/// Any other bytes, padding that is not zero included, are [`Error::Corrupt`]; `out` is then
/// unspecified. `count` positions are allocated only after as many were seen in `bytes`
/// ([`Coding::None`] and [`Coding::Seeded`], where there are none to see, take the caller's word).
///
/// Parameters that stand in `bytes` and in `coding` are taken from the coding.
pub fn decode_into(
    kernels: &Kernels,
    coding: Coding,
    bytes: &[u8],
    numel: u64,
    count: u64,
    out: &mut Vec<u32>,
) -> Result<()> {
    if let Coding::Seeded(draw) = coding {
        check_len(coding, numel, count, bytes.len() as u64)?;
        return draw.positions_into(kernels, numel, count, out);
    }
    out.clear();
    let mut drawn = Vec::new();
    let mut blocks = Blocks::new(coding, bytes, (numel, count), kernels, &mut drawn)?;
    allocate::resize(out, count as usize)?;
    blocks.read(out)
}

/// Checks that `len` bytes can be `count` positions out of `numel`: exactly, or for Rice within
/// what any support of that size can take.
pub(crate) fn check_len(coding: Coding, numel: u64, count: u64, len: u64) -> Result<()> {
    if numel > MAX_NUMEL {
        return Err(Error::TooLarge { numel, limit: MAX_NUMEL });
    }
    if count > numel {
        return Err(Error::corrupt(format!("{count} entries in a tensor of {numel} elements")));
    }
    if coding == Coding::None && count != numel {
        return Err(Error::corrupt(format!(
            "a dense frame of {numel} elements says that it holds {count}"
        )));
    }
    if let Coding::ChunkLocal(chunks) = coding
        && count != chunks.count(numel)
    {
        let (size, k) = (chunks.size(), chunks.k());
        return Err(Error::corrupt(format!(
            "{count} entries out of {numel} are not {k} in each chunk of {size}"
        )));
    }
    if let Coding::EliasFano { low_bits: width } | Coding::Rice { bits: width } = coding
        && width > MAX_LOW_BITS
    {
        return Err(Error::corrupt(format!("low parts have {width} bits, at most 31 are allowed")));
    }
    let allowed = lengths(coding, numel, count);
    if allowed.contains(&len) {
        return Ok(());
    }
    let (from, to) = (allowed.start(), allowed.end());
    let expected = if from == to { from.to_string() } else { format!("{from} to {to}") };
    Err(Error::corrupt(format!("index section has {len} bytes instead of {expected}")))
}

/// Lengths in bytes that `count` positions out of `numel` may have.
fn lengths(coding: Coding, numel: u64, count: u64) -> std::ops::RangeInclusive<u64> {
    if count == 0 {
        return 0..=0;
    }
    match coding {
        Coding::EliasFano { low_bits } => {
            let len = elias_fano::len(low_bits, numel, count);
            len..=len
        }
        Coding::Rice { bits } => rice::lengths(bits, numel, count),
        Coding::Bitmap => {
            let len = numel.div_ceil(8);
            len..=len
        }
        Coding::None => 0..=0,
        Coding::ChunkLocal(chunks) => {
            let len = chunk_local::len(chunks, count);
            len..=len
        }
        Coding::Seeded(_) => draw::LEN as u64..=draw::LEN as u64,
    }
}

#[cfg(test)]
mod tests;
