//! How far floats are from others: steps, as [`huffman`] codes of their bit lengths, and the bits below.
//!
//! The bits of floats are whole numbers in the order of the floats: those of a negative one inverted, and of
//! others with the highest bit set. Two floats that are near each other differ by a small number, across a power of
//! two as well: 1.0 and the bfloat16 above it by 1, and -0 and 0 too.
//!
//! A step has a code: its size below 8; else the highest three bits of its size, and 4 for each bit below those, which
//! follow with a bit above that is set of a step down. One by 11 = `0b1011` down has the code `0b101 + 4 = 9`, and the
//! bits `0b11` follow.
//!
//! Steps are written in pieces of 65536:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | how many codes are in a symbol, up to 8 |
//! | 1 | if they are more than one: `a`, which all codes are below |
//! | | the symbols, see [`huffman`]: of codes `l`, `m`, and so on `l + a m + ...`; those of the last one that are not there are 0 |
//! | | the bits of each step that follow, none of no step |
//!
//! A step is the new number less the old one. No code is shorter than a bit: where most are equal, several are one
//! symbol.

use super::floats::Bits;
use super::huffman::{self, ALPHABET, Code, Reader, split};
use crate::simd::Kernels;
use crate::simd::fields::is_padded;
use crate::simd::gaps::bits_of_field;
use crate::{Error, Result};

/// Steps of a piece.
const PIECE: usize = huffman::BLOCK;

/// Codes in a symbol at most.
const TOGETHER: usize = 8;

/// Codes by which it is decided how many are in a symbol.
const LOOKED_AT: usize = 1 << 14;

/// Steps that are read together.
const CHUNK: usize = 4096;

/// How many codes the steps of a type may have: the largest has all bits but three below its highest three.
const fn alphabet<T>() -> usize {
    4 * (8 * size_of::<T>() - 3) + 8
}

/// Appends the steps from floats of a base to as many others.
pub(super) fn write<T: Bits>(kernels: &Kernels, values: &[T], base: &[T], out: &mut Vec<u8>) {
    let room = values.len().min(PIECE);
    let (mut codes, mut fields) = (vec![0; room], vec![0; room]);
    for (values, base) in values.chunks(PIECE).zip(base.chunks(PIECE)) {
        let (codes, fields) = (&mut codes[..values.len()], &mut fields[..values.len()]);
        T::gaps(kernels, values, base, codes, fields);
        let counts = huffman::counts(codes, alphabet::<T>());
        let Some(joined) = Joined::choose(codes, &counts) else { return };
        out.push(joined.each as u8);
        if joined.each > 1 {
            out.push(joined.base as u8);
        }
        joined.code.write(kernels, joined.symbols.as_deref().unwrap_or(codes), out);
        let bits: usize = counts
            .iter()
            .map(|(code, count)| bits_of_field(*code) as usize * *count as usize)
            .sum();
        let at = out.len();
        out.resize(at + bits.div_ceil(8) + 8, 0);
        kernels.put_fields(codes, fields, &mut out[at..]);
        out.truncate(at + bits.div_ceil(8));
    }
}

/// Moves floats by as many steps, or `back` by these, and returns what follows them.
///
/// After an error `out` holds anything.
pub(super) fn read<'a, T: Bits>(
    kernels: &Kernels,
    mut bytes: &'a [u8],
    back: bool,
    out: &mut [T],
) -> Result<&'a [u8]> {
    for out in out.chunks_mut(PIECE) {
        bytes = read_piece(kernels, bytes, back, out)?;
    }
    Ok(bytes)
}

fn read_piece<'a, T: Bits>(
    kernels: &Kernels,
    bytes: &'a [u8],
    back: bool,
    out: &mut [T],
) -> Result<&'a [u8]> {
    let (head, bytes) = split(bytes, 1)?;
    let each = usize::from(head[0]);
    if !(1..=TOGETHER).contains(&each) {
        return Err(Error::corrupt(format!("{each} codes are in a symbol")));
    }
    let (mut reader, bytes) = Codes::new(each, bytes, out.len(), alphabet::<T>())?;
    if reader.are_zero() {
        return Ok(bytes);
    }
    let (mut codes, mut at) = ([0; CHUNK], 0);
    for out in out.chunks_mut(CHUNK / each / 32 * 32 * each) {
        let codes = &mut codes[..out.len()];
        reader.read(kernels, codes)?;
        let (next, in_order) = T::close(kernels, codes, bytes, at, back, out);
        if !in_order {
            return Err(Error::corrupt("a step leads beyond all floats"));
        }
        at = next;
    }
    let (fields, rest) = split(bytes, at.div_ceil(8))?;
    if !is_padded(fields, 1, at as u64) {
        return Err(Error::corrupt("bits follow the last step"));
    }
    Ok(rest)
}

/// Codes, several in each symbol.
struct Joined {
    each: usize,
    base: usize,
    code: Code,
    /// None: the codes themselves.
    symbols: Option<Vec<u16>>,
}

impl Joined {
    /// What is shortest of codes that occur so often, or nearly; none of none.
    fn choose(codes: &[u16], counts: &[(u16, u32)]) -> Option<Self> {
        let base = 1 + counts.last().map_or(0, |(largest, _)| usize::from(*largest));
        let most = counts.iter().map(|(_, count)| *count as usize).max().unwrap_or(0);
        // Otherwise no code is much longer than it should be; and one of a single code takes nothing.
        if 5 * most >= 2 * codes.len() && counts.len() > 1 {
            let first = &codes[..codes.len().min(LOOKED_AT)];
            let len = |each| {
                let counts = huffman::counts(&joined(first, base, each), base.pow(each as u32));
                Code::new(&counts).map_or(usize::MAX, |code| code.len(&counts))
            };
            let possible = (1..=TOGETHER).take_while(|each| alphabet_of(base, *each).is_some());
            let each = possible.min_by_key(|each| len(*each)).unwrap_or(1);
            let symbols = joined(codes, base, each);
            let code = Code::new(&huffman::counts(&symbols, base.pow(each as u32)));
            if let Some(code) = code.filter(|_| each > 1) {
                return Some(Self { each, base, code, symbols: Some(symbols) });
            }
        }
        Some(Self { each: 1, base, code: Code::new(counts)?, symbols: None })
    }
}

/// How many symbols of so many codes there may be, unless too many.
fn alphabet_of(base: usize, each: usize) -> Option<usize> {
    base.checked_pow(each as u32).filter(|alphabet| *alphabet <= ALPHABET)
}

fn joined(codes: &[u16], base: usize, each: usize) -> Vec<u16> {
    let symbol = |codes: &[u16]| codes.iter().rev().fold(0, |all, code| all * base as u16 + code);
    codes.chunks(each).map(symbol).collect()
}

/// Reads codes, many of them at a time.
struct Codes<'a> {
    reader: Reader<'a>,
    each: usize,
    /// Of each symbol.
    table: Vec<[u16; TOGETHER]>,
}

impl<'a> Codes<'a> {
    /// Reads what is before the codes of `len` codes below `alphabet`, and returns what follows those, too.
    fn new(each: usize, bytes: &'a [u8], len: usize, alphabet: usize) -> Result<(Self, &'a [u8])> {
        if each == 1 {
            let (reader, rest) = Reader::new(bytes, len, alphabet)?;
            return Ok((Self { reader, each, table: Vec::new() }, rest));
        }
        let (base, bytes) = split(bytes, 1)?;
        let base = usize::from(base[0]);
        let symbols = alphabet_of(base, each).filter(|_| (2..=alphabet).contains(&base));
        let symbols = symbols.ok_or_else(|| Error::corrupt("codes do not fit a symbol"))?;
        let (reader, rest) = Reader::new(bytes, len.div_ceil(each), symbols)?;
        let mut table = vec![[0; TOGETHER]; symbols];
        for (mut symbol, codes) in table.iter_mut().enumerate() {
            for code in codes.iter_mut().take(each) {
                *code = (symbol % base) as u16;
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
            let (codes, beyond) = self.table[usize::from(*symbol)].split_at(out.len());
            out.copy_from_slice(codes);
            if beyond.iter().any(|code| *code > 0) {
                return Err(Error::corrupt("a code follows the last step"));
            }
        }
        Ok(())
    }
}
