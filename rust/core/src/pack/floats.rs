//! Floats without loss: the exponent and the highest bits of the mantissa as [`huffman`] codes, the rest as it is.
//!
//! Exponents of a tensor are few, and so are the mantissa's highest bits beside them; what follows has no
//! pattern (Hershcovitch et al., "`ZipNN`: Lossless Compression for AI Models", 2024; Zhang et al., "70% Size, 100%
//! Accuracy: Lossless LLM Compression for Efficient GPU Inference via Dynamic-Length Float", 2025; both code the
//! exponent alone).
//!
//! | bytes | content |
//! |---|---|
//! | 1 | bits of the mantissa that are in a symbol, 0 to 3; or 255: all floats follow as they are |
//! | | the symbols, see [`huffman`] |
//! | n each | of the other bits with the sign above them, as many whole bytes as there are, the lowest first |
//! | | the bits above those, of each float after the other |

use std::array::from_fn;

use super::huffman::{self, ALPHABET, Code, MOST, Reader};
use crate::simd::Kernels;
use crate::{Error, Result};

pub use super::huffman::BLOCK;

/// Bits of the mantissa that are in a symbol at most.
const JOINED: u32 = 3;

/// The first byte of floats that are as they were.
const STORED: u8 = 255;

/// Floats that are worked on together, which stay in the cache.
const CHUNK: usize = 4096;

/// The bytes of a float, the lowest first.
pub trait Bits: Copy + Send + Sync {
    /// As a number.
    fn widen(self) -> u32;

    /// Of a number that has no others.
    fn narrow(bits: u32) -> Self;
}

impl Bits for [u8; 2] {
    #[inline(always)]
    fn widen(self) -> u32 {
        u32::from(u16::from_le_bytes(self))
    }

    #[inline(always)]
    fn narrow(bits: u32) -> Self {
        (bits as u16).to_le_bytes()
    }
}

impl Bits for [u8; 4] {
    #[inline(always)]
    fn widen(self) -> u32 {
        u32::from_le_bytes(self)
    }

    #[inline(always)]
    fn narrow(bits: u32) -> Self {
        bits.to_le_bytes()
    }
}

/// How many bits of a float are its exponent, and its mantissa below; its sign is above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Up to 8.
    pub exponent: u32,
    /// At least 7.
    pub mantissa: u32,
}

impl Format {
    /// The upper half of a float32.
    pub const BFLOAT16: Self = Self { exponent: 8, mantissa: 7 };
    /// IEEE 754 binary16.
    pub const FLOAT16: Self = Self { exponent: 5, mantissa: 10 };
    /// IEEE 754 binary32.
    pub const FLOAT32: Self = Self { exponent: 8, mantissa: 23 };
}

/// Which bits are where, with so many of the mantissa in a symbol.
#[derive(Debug, Clone, Copy)]
struct Split {
    joined: u32,
    alphabet: usize,
    /// Bits below a symbol.
    below: u32,
    /// Where the sign is.
    sign: u32,
    /// Bytes of the rest, and bits above them.
    bytes: usize,
    bits: u32,
}

impl Split {
    fn new(format: Format, joined: u32) -> Self {
        let below = format.mantissa - joined;
        Self {
            joined,
            alphabet: 1 << (format.exponent + joined),
            below,
            sign: format.mantissa + format.exponent,
            bytes: (below + 1) as usize / 8,
            bits: (below + 1) % 8,
        }
    }

    #[inline(always)]
    fn symbol(self, bits: u32) -> usize {
        (bits >> self.below) as usize & (self.alphabet - 1)
    }

    /// What a symbol does not say.
    #[inline(always)]
    fn rest(self, bits: u32) -> u32 {
        (bits & ((1 << self.below) - 1)) | bits >> self.sign << self.below
    }

    #[inline(always)]
    fn join(self, symbol: u16, rest: u32) -> u32 {
        let low = rest & ((1 << self.below) - 1);
        u32::from(symbol) << self.below | low | rest >> self.below << self.sign
    }

    /// Bytes of the rests of so many floats.
    fn len(self, count: usize) -> usize {
        count * self.bytes + (count * self.bits as usize).div_ceil(8)
    }
}

/// Appends a block of at most [`BLOCK`] floats.
pub fn write<T: Bits>(kernels: &Kernels, format: Format, values: &[T], out: &mut Vec<u8>) {
    write_chosen(kernels, choose(format, values), values, out);
}

/// How a block of floats is best written.
#[derive(Debug)]
pub(super) struct Chosen {
    len: usize,
    split: Split,
    code: Code,
}

impl Chosen {
    /// About the bytes it takes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Appends a block as it was chosen to be.
pub(super) fn write_chosen<T: Bits>(
    kernels: &Kernels,
    chosen: Option<Chosen>,
    values: &[T],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    if let Some(Chosen { split, code, .. }) = chosen {
        out.push(split.joined as u8);
        let symbols: Vec<u16> =
            values.iter().map(|value| split.symbol(value.widen()) as u16).collect();
        code.write(&symbols, out);
        write_rests(kernels, split, values, out);
        if out.len() <= start + size_of_val(values) {
            return;
        }
        out.truncate(start);
    }
    out.push(STORED);
    let bytes = values
        .iter()
        .flat_map(|value| value.widen().to_le_bytes().into_iter().take(size_of::<T>()));
    out.extend(bytes);
}

/// How many bits of the mantissa are best in a symbol, and the code of those.
pub(super) fn choose<T: Bits>(format: Format, values: &[T]) -> Option<Chosen> {
    let most = Split::new(format, JOINED);
    // Two tables: equal floats one after the other do not wait for each other.
    let mut counts = [[0_u32; ALPHABET]; 2];
    for pair in values.chunks(2) {
        for (value, counts) in pair.iter().zip(&mut counts) {
            counts[most.symbol(value.widen()) % ALPHABET] += 1;
        }
    }
    let mut counts: Vec<u32> = (0..most.alphabet).map(|i| counts[0][i] + counts[1][i]).collect();
    let mut best: Option<Chosen> = None;
    for joined in (0..=JOINED).rev() {
        let split = Split::new(format, joined);
        if joined < JOINED {
            counts = counts.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        if counts.iter().filter(|count| **count > 0).count() > MOST {
            continue;
        }
        let code = Code::new(&counts)?;
        let len = code.len(&counts) + split.len(values.len());
        if best.as_ref().is_none_or(|best| len < best.len) {
            best = Some(Chosen { len, split, code });
        }
        // Where there are many floats, the finest symbols are the best, but for hardly anything.
        if values.len() > CHUNK {
            break;
        }
    }
    best
}

fn write_rests<T: Bits>(kernels: &Kernels, split: Split, values: &[T], out: &mut Vec<u8>) {
    for byte in 0..split.bytes {
        out.extend(values.iter().map(|value| (split.rest(value.widen()) >> (8 * byte)) as u8));
    }
    if split.bits == 0 {
        return;
    }
    let mut fields = [0; CHUNK];
    for values in values.chunks(CHUNK) {
        let fields = &mut fields[..values.len()];
        for (field, value) in fields.iter_mut().zip(values) {
            *field = (split.rest(value.widen()) >> (8 * split.bytes)) as u8;
        }
        let at = out.len();
        out.resize(at + (values.len() * split.bits as usize).div_ceil(8), 0);
        kernels.pack(fields, split.bits, &mut out[at..]);
    }
}

/// Reads a block of as many floats as `out` has, and returns what follows it.
///
/// After an error `out` holds anything.
pub fn read<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    out: &mut [T],
) -> Result<&'a [u8]> {
    let (head, bytes) = huffman::split(bytes, 1)?;
    let joined = u32::from(head[0]);
    if head[0] == STORED {
        let (values, rest) = huffman::split(bytes, size_of_val(out))?;
        for (out, bytes) in out.iter_mut().zip(values.chunks_exact(size_of::<T>())) {
            *out = T::narrow(bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte)));
        }
        return Ok(rest);
    }
    if joined > JOINED {
        return Err(Error::corrupt("a block of floats begins with neither 0 to 3 nor 255"));
    }
    let split = Split::new(format, joined);
    let (mut symbols, bytes) = Reader::new(bytes, out.len(), split.alphabet)?;
    let (rests, after) = huffman::split(bytes, split.len(out.len()))?;
    let (planes, fields) = rests.split_at(out.len() * split.bytes);
    if let Some(last) = fields.last() {
        let filled = (out.len() * split.bits as usize) % 8;
        if filled > 0 && last >> filled != 0 {
            return Err(Error::corrupt("bits follow the last one of a block of floats"));
        }
    }
    let rests = Rests { kernels, split, planes, fields };
    match split.bytes {
        0 => rests.join::<T, 0>(&mut symbols, out)?,
        1 => rests.join::<T, 1>(&mut symbols, out)?,
        2 => rests.join::<T, 2>(&mut symbols, out)?,
        _ => rests.join::<T, 3>(&mut symbols, out)?,
    }
    Ok(after)
}

/// What symbols do not say.
struct Rests<'a> {
    kernels: &'a Kernels,
    split: Split,
    planes: &'a [u8],
    fields: &'a [u8],
}

impl Rests<'_> {
    fn join<T: Bits, const BYTES: usize>(
        &self,
        reader: &mut Reader<'_>,
        out: &mut [T],
    ) -> Result<()> {
        let Self { kernels, split, .. } = *self;
        let total = out.len();
        let (mut symbols, mut fields) = ([0; CHUNK], [0; CHUNK]);
        for (i, out) in out.chunks_mut(CHUNK).enumerate() {
            let (at, len) = (i * CHUNK, out.len());
            let (symbols, fields) = (&mut symbols[..len], &mut fields[..len]);
            reader.read(symbols)?;
            if split.bits > 0 {
                let bits = split.bits as usize;
                let packed = &self.fields[at / 8 * bits..][..(len * bits).div_ceil(8)];
                kernels.unpack(packed, split.bits, fields);
            }
            let planes: [&[u8]; BYTES] = from_fn(|byte| &self.planes[byte * total + at..][..len]);
            for (j, out) in out.iter_mut().enumerate() {
                let mut rest = u32::from(fields[j]) << (8 * BYTES);
                for (byte, plane) in planes.iter().enumerate() {
                    rest |= u32::from(plane[j]) << (8 * byte);
                }
                *out = T::narrow(split.join(symbols[j], rest));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::available_levels;
    use crate::simd::testing::tensor;

    fn halves(values: &[f32]) -> Vec<[u8; 2]> {
        values.iter().map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
    }

    /// Nearly normal ones: sums of six from -1 to 1, as layers have them.
    fn normal(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as i32 as f32 / 2e9
        };
        (0..len).map(|_| 0.02 * (0..6).map(|_| draw()).sum::<f32>()).collect()
    }

    fn comes_back<T: Bits + Default + PartialEq + std::fmt::Debug>(
        format: Format,
        values: &[T],
    ) -> usize {
        let mut bytes: Option<Vec<u8>> = None;
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            let mut out = vec![7];
            write(kernels, format, values, &mut out);
            assert_eq!(bytes.get_or_insert(out.clone()), &out);
            assert!(out.len() <= 2 + size_of_val(values));
            out.push(9);
            let mut found = vec![T::default(); values.len()];
            assert_eq!(read(kernels, format, &out[1..], &mut found).unwrap(), [9]);
            assert_eq!(found, values);
        }
        bytes.unwrap().len() - 1
    }

    #[test]
    fn all_bits_come_back_of_any_number_of_floats_on_every_level() {
        for len in [0, 1, 2, 7, 100, 2047, 2048, 4095, 4097, 9001, BLOCK] {
            let values = tensor(len, 3);
            comes_back(Format::BFLOAT16, &halves(&values));
            let float16: Vec<_> =
                values.iter().map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
            comes_back(Format::FLOAT16, &float16);
            comes_back(
                Format::FLOAT32,
                &values.iter().map(|x| x.to_le_bytes()).collect::<Vec<_>>(),
            );
        }
        let all: Vec<_> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        comes_back(Format::BFLOAT16, &all);
        comes_back(Format::FLOAT16, &all);
        comes_back(Format::BFLOAT16, &[[0, 0x80]; 5000]);
    }

    #[test]
    fn weights_take_two_thirds_of_bfloat16() {
        let values = halves(&normal(BLOCK, 1));
        let len = comes_back(Format::BFLOAT16, &values);
        assert!(len < 2 * BLOCK * 662 / 1000, "{len}");
    }

    #[test]
    fn no_change_of_the_bytes_does_any_harm() {
        for len in [60, 2100] {
            let values = halves(&normal(len, 5));
            let mut bytes = Vec::new();
            let kernels = Kernels::current();
            write(kernels, Format::BFLOAT16, &values, &mut bytes);
            let mut out = vec![[0; 2]; len];
            for end in 0..bytes.len() {
                assert!(read(kernels, Format::BFLOAT16, &bytes[..end], &mut out).is_err(), "{end}");
            }
            for bit in 0..8 * bytes.len() {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let _ = read(kernels, Format::BFLOAT16, &bytes, &mut out);
            }
        }
    }
}
