//! Floats beside those of another tensor, without loss: how far apart two are, as [`huffman`] codes of its bit
//! length, and the bits below.
//!
//! The bits of floats are whole numbers in the order of the floats: those of a negative one inverted, and of
//! others with the highest bit set. Two floats that are near each other differ by a small number, across a power of
//! two as well.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 3 and how many bit lengths are in a symbol, up to 11; or what a block of [`floats`] begins with, which follows |
//! | 1 | if they are more than one: `a`, which all lengths are below |
//! | | the symbols, see [`huffman`]: of lengths `l`, `m`, and so on `l + a m + ...`; those of the last one that are not there are 0 |
//! | | as many bits of each: those below its highest, and whether it is negative above them; none of zero |
//!
//! A difference is the new number less the old one. A block of floats stands where it is shorter. No code is shorter
//! than a bit: where most differences are zero, several lengths are one symbol.

use super::floats::{self, Bits, Format};
use super::huffman::{self, ALPHABET, Code, Reader, split};
use crate::simd::Kernels;
use crate::simd::fields::is_padded;
use crate::{Error, Result};

/// The first byte of differences, less the number of lengths in a symbol.
const DIFFERENCES: u8 = 3;

/// Lengths in a symbol at most.
const TOGETHER: usize = 8;

/// Differences that are worked on together.
const CHUNK: usize = 4096;

/// How many bytes the length of a block may be off before it is written: of its table, above all.
const DOUBT: usize = 1024;

/// How many lengths the differences of a type may have.
const fn alphabet<T>() -> usize {
    8 * size_of::<T>() + 1
}

/// Appends a block of at most [`floats::BLOCK`] floats, as they differ from as many of a base.
pub fn write<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    base: &[T],
    out: &mut Vec<u8>,
) {
    let (mut lengths, mut fields) = (vec![0; values.len()], vec![0; values.len()]);
    T::gaps(kernels, values, base, &mut lengths, &mut fields);
    let counts = huffman::counts(&lengths, alphabet::<T>());
    let plain = floats::choose(kernels, format, values);
    let bits: usize = counts.iter().map(|(len, count)| usize::from(*len) * *count as usize).sum();
    let Some(chosen) = Joined::choose(&lengths, &counts) else {
        return floats::write_chosen(kernels, plain, values, out);
    };
    let (about, start) = (chosen.len + bits.div_ceil(8), out.len());
    let most = size_of_val(values);
    let plain_about = plain.len(most);
    if about < plain_about + DOUBT {
        out.push(DIFFERENCES + chosen.each as u8);
        if chosen.each > 1 {
            out.push(chosen.base as u8);
        }
        chosen.code.write(kernels, chosen.symbols.as_deref().unwrap_or(&lengths), out);
        let at = out.len();
        out.resize(at + bits.div_ceil(8) + 8, 0);
        kernels.put_fields(&lengths, &fields, &mut out[at..]);
        out.truncate(at + bits.div_ceil(8));
        if about + DOUBT < plain_about {
            return;
        }
    }
    let middle = out.len();
    floats::write_chosen(kernels, plain, values, out);
    // Of both, the shorter.
    if middle > start {
        if middle - start < out.len() - middle {
            out.truncate(middle);
        } else {
            out.drain(start..middle);
        }
    }
}

/// Bit lengths as symbols, several in each.
struct Joined {
    each: usize,
    base: usize,
    code: Code,
    /// About the bytes of the codes.
    len: usize,
    /// None: the lengths.
    symbols: Option<Vec<u16>>,
}

impl Joined {
    /// What is shortest of lengths that occur so often; none of none.
    fn choose(lengths: &[u16], counts: &[(u16, u32)]) -> Option<Self> {
        let code = Code::new(counts)?;
        let base = 1 + counts.last().map_or(0, |(longest, _)| usize::from(*longest));
        let len = code.len(counts);
        let mut best = Self { each: 1, base, code, len, symbols: None };
        let most = counts.iter().map(|(_, count)| *count as usize).max().unwrap_or(0);
        // Otherwise no code is much longer than it should be; and one of a single symbol takes nothing.
        if 5 * most < 2 * lengths.len() || base < 2 {
            return Some(best);
        }
        for each in 2..=TOGETHER {
            let Some(alphabet) = alphabet_of(base, each) else { break };
            let symbols: Vec<u16> =
                lengths.chunks(each).map(|lengths| joined(lengths, base)).collect();
            let counts = huffman::counts(&symbols, alphabet);
            let Some(code) = Code::new(&counts) else { break };
            let len = code.len(&counts);
            if len < best.len {
                best = Self { each, base, code, len, symbols: Some(symbols) };
            }
        }
        Some(best)
    }
}

/// How many symbols of so many lengths there may be, unless too many.
fn alphabet_of(base: usize, each: usize) -> Option<usize> {
    base.checked_pow(each as u32).filter(|alphabet| *alphabet <= ALPHABET)
}

fn joined(lengths: &[u16], base: usize) -> u16 {
    lengths.iter().rev().fold(0, |symbol, length| symbol * base as u16 + length)
}

/// Reads bit lengths, many of them at a time.
struct Lengths<'a> {
    reader: Reader<'a>,
    each: usize,
    /// Of each symbol, if it has several.
    table: Vec<[u16; TOGETHER]>,
}

impl<'a> Lengths<'a> {
    /// Reads what is before the codes of `len` lengths below `alphabet`, and returns what follows those, too.
    fn new(each: usize, bytes: &'a [u8], len: usize, alphabet: usize) -> Result<(Self, &'a [u8])> {
        if each == 1 {
            let (reader, rest) = Reader::new(bytes, len, alphabet)?;
            return Ok((Self { reader, each, table: Vec::new() }, rest));
        }
        let (base, bytes) = split(bytes, 1)?;
        let base = usize::from(base[0]);
        let symbols = alphabet_of(base, each).filter(|_| (2..=alphabet).contains(&base));
        let symbols = symbols.ok_or_else(|| Error::corrupt("lengths do not fit a symbol"))?;
        let (reader, rest) = Reader::new(bytes, len.div_ceil(each), symbols)?;
        let mut table = vec![[0; TOGETHER]; symbols];
        for (mut symbol, lengths) in table.iter_mut().enumerate() {
            for length in lengths.iter_mut().take(each) {
                *length = (symbol % base) as u16;
                symbol /= base;
            }
        }
        Ok((Self { reader, each, table }, rest))
    }

    /// Whether all are zero.
    fn are_zero(&self) -> bool {
        self.reader.single() == Some(0)
    }

    /// The next ones: a multiple of 32 times those in a symbol, but for the last ones.
    fn read(&mut self, kernels: &Kernels, out: &mut [u16]) -> Result<()> {
        if self.each == 1 {
            return self.reader.read(kernels, out);
        }
        let mut symbols = [0; CHUNK];
        let symbols = &mut symbols[..out.len().div_ceil(self.each)];
        self.reader.read(kernels, symbols)?;
        for (out, symbol) in out.chunks_mut(self.each).zip(symbols) {
            let (own, beyond) = self.table[usize::from(*symbol)].split_at(out.len());
            out.copy_from_slice(own);
            if beyond.iter().any(|length| *length > 0) {
                return Err(Error::corrupt("a length follows the last difference of a block"));
            }
        }
        Ok(())
    }
}

/// Reads a block of as many floats as `out` has, and returns what follows it. `out` comes with the base.
///
/// After an error `out` holds anything.
pub fn read<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    out: &mut [T],
) -> Result<&'a [u8]> {
    let (head, rest) = split(bytes, 1)?;
    let each = usize::from(head[0].wrapping_sub(DIFFERENCES));
    if !(1..=TOGETHER).contains(&each) {
        return floats::read(kernels, format, bytes, out);
    }
    let (mut reader, bytes) = Lengths::new(each, rest, out.len(), alphabet::<T>())?;
    if reader.are_zero() {
        return Ok(bytes);
    }
    let (mut lengths, mut at) = ([0; CHUNK], 0);
    for out in out.chunks_mut(CHUNK / each / 32 * 32 * each) {
        let lengths = &mut lengths[..out.len()];
        reader.read(kernels, lengths)?;
        let (next, in_order) = T::close(kernels, lengths, bytes, at, out);
        if !in_order {
            return Err(Error::corrupt("a difference leads beyond all floats"));
        }
        at = next;
    }
    let (own, rest) = split(bytes, at.div_ceil(8))?;
    if !is_padded(own, 1, at as u64) {
        return Err(Error::corrupt("bits follow the last difference of a block"));
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::floats::BLOCK;
    use crate::pack::floats::tests::{no_change_does_harm, singles};
    use crate::simd::available_levels;
    use crate::simd::gaps::{order, restore};
    use crate::simd::testing::tensor;

    type Half = [u8; 2];
    type Single = [u8; 4];

    fn written<T: Bits>(format: Format, values: &[T], base: &[T]) -> Vec<u8> {
        let mut out = Vec::new();
        write(Kernels::current(), format, values, base, &mut out);
        out
    }

    /// Checks that values come back on every level, and returns the bytes they took.
    fn comes_back<T: Bits + PartialEq + std::fmt::Debug>(
        format: Format,
        values: &[T],
        base: &[T],
    ) -> usize {
        let bytes = written(format, values, base);
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            let mut out = vec![7];
            write(kernels, format, values, base, &mut out);
            assert_eq!(out[1..], bytes);
            let mut alone = Vec::new();
            floats::write(kernels, format, values, &mut alone);
            assert!(bytes.len() <= alone.len(), "{} {}", bytes.len(), alone.len());
            out.push(9);
            let mut found = base.to_vec();
            assert_eq!(read(kernels, format, &out[1..], &mut found).unwrap(), [9]);
            assert_eq!(found, values);
        }
        bytes.len()
    }

    /// Floats a few steps up or down.
    fn moved(base: &[Single], steps: u32) -> Vec<Single> {
        let step = |i: usize| (i as u32).wrapping_mul(0x9e37_79b1) % (2 * steps + 1);
        let moved = |(i, base): (usize, &Single)| {
            restore(order(*base).saturating_add(step(i)).saturating_sub(steps))
        };
        base.iter().enumerate().map(moved).collect()
    }

    #[test]
    fn any_bits_come_back_beside_any_others() {
        let all: Vec<Half> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        for shift in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let others: Vec<Half> =
                (0..=u16::MAX).map(|bits| bits.wrapping_add(shift).to_le_bytes()).collect();
            comes_back(Format::BFLOAT16, &others, &all);
            comes_back(Format::FLOAT16, &all, &others);
        }
        let turned: Vec<Half> = all.iter().rev().copied().collect();
        comes_back(Format::BFLOAT16, &turned, &all);
        let odd = [f32::NAN, -f32::NAN, 0.0, -0.0, f32::INFINITY, -f32::INFINITY, f32::MAX, 1e-45];
        for value in odd.map(f32::to_le_bytes) {
            for base in odd.map(f32::to_le_bytes) {
                comes_back(Format::FLOAT32, &[value; 3], &[base; 3]);
                comes_back(Format::FLOAT32, &vec![value; 5000], &vec![base; 5000]);
            }
        }
        let extremes = [u32::MAX, 0, 0x7FFF_FFFF, 0x8000_0000].map(u32::to_le_bytes);
        let turned: Vec<Single> = extremes.iter().rev().copied().collect();
        comes_back(Format::FLOAT32, &extremes, &turned);
    }

    #[test]
    fn any_number_of_floats_comes_back() {
        for len in [0, 1, 2, 31, 2047, 2048, 4095, 4097, 9001, BLOCK] {
            let base = singles(&tensor(len, 3));
            comes_back(Format::FLOAT32, &base, &singles(&tensor(len, 4)));
            for steps in [0, 1, 3, 1000] {
                comes_back(Format::FLOAT32, &moved(&base, steps), &base);
            }
        }
    }

    #[test]
    fn what_has_not_changed_takes_nothing_and_what_has_moved_little_takes_that() {
        let base = singles(&tensor(BLOCK, 5));
        assert_eq!(comes_back(Format::FLOAT32, &base, &base), 4);
        // One of ten by one step: 0.57 bits each, of which no code of its own can be.
        let mut rarely = base.clone();
        for (new, base) in rarely.iter_mut().zip(moved(&base, 1)).step_by(7) {
            *new = base;
        }
        let len = comes_back(Format::FLOAT32, &rarely, &base);
        assert!(8 * len < 6 * BLOCK / 10, "{len}");
        // From -3 to 3: 2.8 bits each.
        let len = comes_back(Format::FLOAT32, &moved(&base, 3), &base);
        assert!(8 * len < 29 * BLOCK / 10, "{len}");
    }

    #[test]
    fn no_change_of_the_bytes_does_any_harm() {
        for (len, steps) in [(60, 40), (2100, 40), (2101, 1)] {
            let base = singles(&tensor(len, 5));
            let mut values = moved(&base, steps);
            if steps == 1 {
                values[..1900].copy_from_slice(&base[..1900]);
            }
            let bytes = written(Format::FLOAT32, &values, &base);
            assert_eq!(bytes[0] > 1 + DIFFERENCES, steps == 1);
            let kernels = Kernels::current();
            no_change_does_harm(&bytes, |bytes| {
                read(kernels, Format::FLOAT32, bytes, &mut base.clone()).map(drop)
            });
        }
    }

    #[test]
    fn a_difference_beyond_all_floats_is_an_error() {
        let bytes = written(Format::FLOAT32, &[[9, 0, 0, 0]; 9], &[[8, 0, 0, 0]; 9]);
        assert_eq!(bytes[0], 1 + DIFFERENCES);
        // The float of the largest number.
        let mut base = [0x7FFF_FFFF_u32.to_le_bytes(); 9];
        let error = read(Kernels::current(), Format::FLOAT32, &bytes, &mut base).unwrap_err();
        assert!(error.to_string().contains("beyond"), "{error}");
    }
}
