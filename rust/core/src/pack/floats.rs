//! Floats without loss: the exponent and the highest bits of the mantissa as [`huffman`] codes, the rest as it is.
//!
//! Exponents of a tensor are few, and so are the mantissa's highest bits beside them; what follows has no
//! pattern (Hershcovitch et al., "`ZipNN`: Lossless Compression for AI Models", 2024; Zhang et al., "70% Size, 100%
//! Accuracy: Lossless LLM Compression for Efficient GPU Inference via Dynamic-Length Float", 2025; both code the
//! exponent alone).
//!
//! | bytes | content |
//! |---|---|
//! | 1 | bits of the mantissa that are in a symbol, 0 to 3; or 255: all floats follow as they are; or 12 to 15: see [`repeats`] |
//! | | the symbols, see [`huffman`] |
//! | n each | of the other bits with the sign above them, as many whole bytes as there are, the lowest first |
//! | | the bits above those, of each float after the other |

use std::array::from_fn;

use super::huffman::{self, Code, Reader};
use super::repeats::{self, Frequent};
use crate::simd::Kernels;
use crate::simd::fields::is_padded;
use crate::simd::parts::{Cut, Word};
use crate::{Error, Result};

pub use super::huffman::BLOCK;

/// Bits of the mantissa that are in a symbol at most.
const JOINED: u32 = 3;

/// The first byte of floats that are as they were.
const STORED: u8 = 255;

/// Floats that are worked on together, which stay in the cache.
const CHUNK: usize = 4096;

/// Floats that are read together: besides them and their parts, the cache holds the table of codes.
const STEP: usize = 2048;

/// Floats of 16 or 32 bits, as bytes, the lowest first; and the kernels for them.
pub trait Bits: Copy + Send + Sync {
    /// The parts that are coded.
    fn symbols(kernels: &Kernels, values: &[Self], cut: Cut, out: &mut [u16]);
    /// Eight bits of the rests.
    fn rests(kernels: &Kernels, values: &[Self], cut: Cut, from: u32, out: &mut [u8]);
    /// Floats of both.
    fn join(kernels: &Kernels, symbols: &[u16], planes: &[&[u8]], cut: Cut, out: &mut [Self]);
    /// How far floats are from others.
    fn gaps(
        kernels: &Kernels,
        values: &[Self],
        base: &[Self],
        codes: &mut [u16],
        fields: &mut [u32],
    );
    /// Others moved by that, or back by it.
    fn close(
        kernels: &Kernels,
        codes: &[u16],
        bytes: &[u8],
        at: usize,
        back: bool,
        out: &mut [Self],
    ) -> (usize, bool);
    /// The exponents of floats.
    fn keys(kernels: &Kernels, format: Format, values: &[Self], out: &mut [u8]);
    /// Which floats differ from others.
    fn changed(kernels: &Kernels, values: &[Self], base: &[Self], out: &mut [u8]);
    /// Its bits, and the float of them.
    fn word(self) -> u32;
    /// The float of the lowest of these bits.
    fn of_word(bits: u32) -> Self;
    /// As they are in memory.
    fn bytes(values: &[Self]) -> &[u8];
    /// The same to be written.
    fn bytes_mut(values: &mut [Self]) -> &mut [u8];
}

macro_rules! bits {
    ($float:ty, $symbols:ident, $rests:ident, $join:ident, $gaps:ident, $close:ident, $keys:ident, $changed:ident) => {
        impl Bits for $float {
            fn symbols(kernels: &Kernels, values: &[Self], cut: Cut, out: &mut [u16]) {
                kernels.$symbols(values, cut, out);
            }

            fn rests(kernels: &Kernels, values: &[Self], cut: Cut, from: u32, out: &mut [u8]) {
                kernels.$rests(values, cut, from, out);
            }

            fn join(
                kernels: &Kernels,
                symbols: &[u16],
                planes: &[&[u8]],
                cut: Cut,
                out: &mut [Self],
            ) {
                kernels.$join(symbols, planes, cut, out);
            }

            fn gaps(
                kernels: &Kernels,
                values: &[Self],
                base: &[Self],
                codes: &mut [u16],
                fields: &mut [u32],
            ) {
                kernels.$gaps(values, base, codes, fields);
            }

            fn close(
                kernels: &Kernels,
                codes: &[u16],
                bytes: &[u8],
                at: usize,
                back: bool,
                out: &mut [Self],
            ) -> (usize, bool) {
                kernels.$close(codes, bytes, at, back, out)
            }

            fn keys(kernels: &Kernels, format: Format, values: &[Self], out: &mut [u8]) {
                let mask = u8::MAX >> (8 - format.exponent);
                kernels.$keys(values, format.mantissa, mask, out);
            }

            fn changed(kernels: &Kernels, values: &[Self], base: &[Self], out: &mut [u8]) {
                kernels.$changed(values, base, out);
            }

            fn word(self) -> u32 {
                self.get()
            }

            fn of_word(bits: u32) -> Self {
                Word::of(bits)
            }

            fn bytes(values: &[Self]) -> &[u8] {
                values.as_flattened()
            }

            fn bytes_mut(values: &mut [Self]) -> &mut [u8] {
                values.as_flattened_mut()
            }
        }
    };
}

bits!([u8; 2], half_symbols, half_rests, half_join, half_gaps, half_close, half_keys, half_changed);
bits!(
    [u8; 4],
    single_symbols,
    single_rests,
    single_join,
    single_gaps,
    single_close,
    single_keys,
    single_changed
);

/// How many bits of a float are its exponent, and its mantissa below; its sign is above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Up to 8.
    pub exponent: u32,
    /// At least 7, but where the lowest bits of all floats of a block are the same.
    pub mantissa: u32,
}

impl Format {
    /// The upper half of a float32.
    pub const BFLOAT16: Self = Self { exponent: 8, mantissa: 7 };
    /// IEEE 754 binary16.
    pub const FLOAT16: Self = Self { exponent: 5, mantissa: 10 };
    /// Bytes as 16 bits, and 8-bit floats, whose exponents are in the same bits or nearly.
    pub const BYTE: Self = Self { exponent: 4, mantissa: 3 };
    /// IEEE 754 binary32.
    pub const FLOAT32: Self = Self { exponent: 8, mantissa: 23 };

    /// The same float shifted right by so many bits.
    pub(super) fn without(self, low: u32) -> Self {
        Self { mantissa: self.mantissa - low, ..self }
    }

    /// Bits of the mantissa that are in a symbol at most.
    fn joined(self) -> u32 {
        JOINED.min(self.mantissa)
    }
}

/// Which bits are where, with so many of the mantissa in a symbol.
#[derive(Debug, Clone, Copy)]
struct Split {
    joined: u32,
    alphabet: usize,
    cut: Cut,
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
            cut: Cut { below, sign: format.mantissa + format.exponent },
            bytes: (below + 1) as usize / 8,
            bits: (below + 1) % 8,
        }
    }

    /// Bytes of the rests of so many floats.
    fn len(self, count: usize) -> usize {
        count * self.bytes + (count * self.bits as usize).div_ceil(8)
    }
}

/// Appends a block of at most [`BLOCK`] floats.
pub fn write<T: Bits>(kernels: &Kernels, format: Format, values: &[T], out: &mut Vec<u8>) {
    write_inside(kernels, format, values, 0, out);
}

/// The same within so many others.
pub(super) fn write_inside<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    depth: u32,
    out: &mut Vec<u8>,
) {
    write_chosen(kernels, choose_inside(kernels, format, values, depth), values, out);
}

/// Appends symbols and rests alone; nothing, and false, if there are too many different symbols.
pub(super) fn write_coded<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    out: &mut Vec<u8>,
) -> bool {
    let coded = code(kernels, format, values).0;
    coded.is_some_and(|coded| {
        coded.write(kernels, values, out);
        true
    })
}

/// How a block of floats is best written.
#[derive(Debug)]
pub(super) enum Chosen {
    /// As symbols and rests.
    Coded(Coded),
    /// As what repeats in it: the block.
    Repeats(Vec<u8>),
    Stored,
}

/// Symbols, and their code.
#[derive(Debug)]
pub(super) struct Coded {
    split: Split,
    code: Code,
    symbols: Vec<u16>,
}

impl Coded {
    fn write<T: Bits>(&self, kernels: &Kernels, values: &[T], out: &mut Vec<u8>) {
        out.push(self.split.joined as u8);
        self.code.write(kernels, &self.symbols, out);
        write_rests(kernels, self.split, values, out);
    }
}

/// Appends a block as it was chosen to be.
pub(super) fn write_chosen<T: Bits>(
    kernels: &Kernels,
    chosen: Chosen,
    values: &[T],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    match chosen {
        Chosen::Coded(coded) => coded.write(kernels, values, out),
        Chosen::Repeats(block) => out.extend(block),
        Chosen::Stored => {}
    }
    if !(1..=size_of_val(values)).contains(&(out.len() - start)) {
        out.truncate(start);
        out.push(STORED);
        out.extend_from_slice(T::bytes(values));
    }
}

/// How a block is best written. What repeats in it is looked for, and then the shorter block counts.
fn choose_inside<T: Bits>(kernels: &Kernels, format: Format, values: &[T], depth: u32) -> Chosen {
    let (coded, frequent) = code(kernels, format, values);
    let usual = coded.map_or(Chosen::Stored, Chosen::Coded);
    let Some(repeats) = repeats::shortest(kernels, format, values, frequent, depth) else {
        return usual;
    };
    let mut block = Vec::new();
    write_chosen(kernels, usual, values, &mut block);
    Chosen::Repeats(if repeats.len() < block.len() { repeats } else { block })
}

/// How many bits of the mantissa are best in a symbol, and the code of those, unless they are too many; and what
/// occurs most.
fn code<T: Bits>(kernels: &Kernels, format: Format, values: &[T]) -> (Option<Coded>, Frequent) {
    let finest = Split::new(format, format.joined());
    let mut symbols = vec![0; values.len()];
    T::symbols(kernels, values, finest.cut, &mut symbols);
    let mut counts = huffman::counts(&symbols, finest.alphabet);
    let frequent = Frequent::of(&counts, finest.cut.below);
    let mut best: Option<(usize, Split, Code)> = None;
    for joined in (0..=format.joined()).rev() {
        let split = Split::new(format, joined);
        if joined < format.joined() {
            for (symbol, _) in &mut counts {
                *symbol >>= 1;
            }
            counts.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                kept.1 += if same { next.1 } else { 0 };
                same
            });
        }
        let Some(code) = Code::new(&counts) else { continue };
        let len = code.len(&counts) + split.len(values.len());
        if best.as_ref().is_none_or(|(least, ..)| len < *least) {
            best = Some((len, split, code));
        }
        // Where there are many floats, the finest symbols are the best, but for hardly anything.
        if values.len() > CHUNK {
            break;
        }
    }
    let coded = best.map(|(_, split, code)| {
        if split.joined < format.joined() {
            T::symbols(kernels, values, split.cut, &mut symbols);
        }
        Coded { split, code, symbols }
    });
    (coded, frequent)
}

fn write_rests<T: Bits>(kernels: &Kernels, split: Split, values: &[T], out: &mut Vec<u8>) {
    for byte in 0..split.bytes {
        let at = out.len();
        out.resize(at + values.len(), 0);
        T::rests(kernels, values, split.cut, 8 * byte as u32, &mut out[at..]);
    }
    if split.bits == 0 {
        return;
    }
    let mut fields = [0; CHUNK];
    for values in values.chunks(CHUNK) {
        let fields = &mut fields[..values.len()];
        T::rests(kernels, values, split.cut, 8 * split.bytes as u32, fields);
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
    read_inside(kernels, format, bytes, out, 0)
}

/// The same within so many others.
pub(super) fn read_inside<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    out: &mut [T],
    depth: u32,
) -> Result<&'a [u8]> {
    let (head, bytes) = huffman::split(bytes, 1)?;
    match head[0] {
        STORED => {
            let (values, rest) = huffman::split(bytes, size_of_val(out))?;
            T::bytes_mut(out).copy_from_slice(values);
            Ok(rest)
        }
        joined if u32::from(joined) <= JOINED => read_coded(kernels, format, joined, bytes, out),
        kind => repeats::read(kernels, format, kind, bytes, out, depth),
    }
}

/// Reads symbols with so many bits of the mantissa, and rests.
pub(super) fn read_coded<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    joined: u8,
    bytes: &'a [u8],
    out: &mut [T],
) -> Result<&'a [u8]> {
    let joined = u32::from(joined);
    if joined > format.joined() {
        return Err(Error::corrupt("a symbol has more bits of the mantissa than there are"));
    }
    let split = Split::new(format, joined);
    let (mut symbols, bytes) = Reader::new(bytes, out.len(), split.alphabet)?;
    let (rests, after) = huffman::split(bytes, split.len(out.len()))?;
    let (planes, fields) = rests.split_at(out.len() * split.bytes);
    if !is_padded(fields, split.bits, out.len() as u64) {
        return Err(Error::corrupt("bits follow the last one of a block of floats"));
    }
    let total = out.len();
    let (mut chunk, mut unpacked) = ([0; STEP], [0; STEP]);
    for (i, out) in out.chunks_mut(STEP).enumerate() {
        // Its lines come while the symbols are read.
        kernels.fetch(T::bytes(out));
        let (at, len) = (i * STEP, out.len());
        let (chunk, unpacked) = (&mut chunk[..len], &mut unpacked[..len]);
        symbols.read(kernels, chunk)?;
        let mut parts: [&[u8]; 3] =
            from_fn(
                |byte| if byte < split.bytes { &planes[byte * total + at..][..len] } else { &[] },
            );
        if split.bits > 0 {
            let bits = split.bits as usize;
            let packed = &fields[at / 8 * bits..][..(len * bits).div_ceil(8)];
            kernels.unpack(packed, split.bits, unpacked);
            parts[split.bytes] = unpacked;
        }
        let planes = split.bytes + usize::from(split.bits > 0);
        T::join(kernels, chunk, &parts[..planes], split.cut, out);
    }
    Ok(after)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::simd::available_levels;
    use crate::simd::testing::tensor;

    pub(in crate::pack) fn halves(values: &[f32]) -> Vec<[u8; 2]> {
        values.iter().map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
    }

    /// Nearly normal ones: sums of six from -1 to 1, as layers have them.
    pub(in crate::pack) fn normal(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as i32 as f32 / 2e9
        };
        (0..len).map(|_| 0.02 * (0..6).map(|_| draw()).sum::<f32>()).collect()
    }

    pub(in crate::pack) fn singles(values: &[f32]) -> Vec<[u8; 4]> {
        values.iter().map(|x| x.to_le_bytes()).collect()
    }

    /// Checks that values come back on every level; the first of their bytes, and how many these are.
    pub(in crate::pack) fn comes_back<T: Bits + PartialEq + std::fmt::Debug>(
        format: Format,
        values: &[T],
    ) -> (u8, usize) {
        let mut bytes: Option<Vec<u8>> = None;
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            let mut out = vec![7];
            write(kernels, format, values, &mut out);
            assert_eq!(bytes.get_or_insert(out.clone()), &out);
            assert!(out.len() <= 2 + size_of_val(values));
            out.push(9);
            let mut found = vec![T::of_word(7); values.len()];
            assert_eq!(read(kernels, format, &out[1..], &mut found).unwrap(), [9]);
            assert_eq!(found, values);
        }
        let bytes = bytes.unwrap();
        (bytes[1], bytes.len() - 1)
    }

    /// Of all that bytes can be changed to, a reader refuses what is too short and survives the rest.
    pub(in crate::pack) fn no_change_does_harm(
        bytes: &[u8],
        mut read: impl FnMut(&[u8]) -> Result<()>,
    ) {
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{end}");
        }
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&bytes);
        }
    }

    #[test]
    fn all_bits_come_back_of_any_number_of_floats_on_every_level() {
        for len in [0, 1, 2, 7, 100, 2047, 2048, 4095, 4097, 9001, BLOCK] {
            let values = tensor(len, 3);
            comes_back(Format::BFLOAT16, &halves(&values));
            let float16: Vec<_> =
                values.iter().map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
            comes_back(Format::FLOAT16, &float16);
            comes_back(Format::FLOAT32, &singles(&values));
        }
        let all: Vec<_> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        comes_back(Format::BFLOAT16, &all);
        comes_back(Format::FLOAT16, &all);
        comes_back(Format::BFLOAT16, &[[0, 0x80]; 5000]);
    }

    #[test]
    fn no_change_of_the_bytes_does_any_harm() {
        for len in [60, 2100] {
            let values = halves(&normal(len, 5));
            let (kernels, mut bytes) = (Kernels::current(), Vec::new());
            write(kernels, Format::BFLOAT16, &values, &mut bytes);
            let mut out = vec![[0; 2]; len];
            no_change_does_harm(&bytes, |bytes| {
                read(kernels, Format::BFLOAT16, bytes, &mut out).map(drop)
            });
        }
    }
}
