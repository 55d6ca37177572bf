//! Blocks of [`floats`] in which bits or values repeat.
//!
//! | first byte | content |
//! |---|---|
//! | 12 | all floats have the same `z` lowest bits of the mantissa: a byte `z`, those bits in as few bytes as they fill, and symbols and rests as of a float whose mantissa ends above them. Float32 that was bfloat16: 16 bits of 0 |
//! | 13 | many floats are the same one: this float, a bit for each, 1 where it is, as [`huffman`] symbols of eight, and a block of the others if there are any. Pruned weights: 0 |
//! | 14 | there are at most 256 different floats: their number less 1, they themselves in ascending order of their bits, and their numbers as [`huffman`] symbols |
//! | 15 | as blocks of their own, of two to the power of the next byte, 7 to 15: rows that have few values each |
//!
//! A block of 15 is not within another, and none is within more than [`DEPTH`] others.

use super::floats::{self, Bits, Format};
use super::huffman::{self, Code, Reader, split};
use crate::simd::Kernels;
use crate::{Error, Result};

/// The same lowest bits.
const LOW: u8 = 12;

/// One float, and others.
const ONE: u8 = 13;

/// Few floats.
const FEW: u8 = 14;

/// Blocks of their own.
const PIECES: u8 = 15;

/// Blocks around another: 0 apart from -0, and that from the rest.
pub(super) const DEPTH: u32 = 3;

/// Bits of the lengths of pieces that there may be, and those that are tried.
const PIECE: std::ops::RangeInclusive<u8> = 7..=15;
const TRIED: [u8; 4] = [7, 8, 10, 12];

/// Different floats that are worth a table.
const MOST: usize = 256;

/// One in so many floats that are zero is worth a bit for all; and of which any other is looked for.
const ZEROS: u32 = 32;
const OTHERS: u32 = 8;

/// Which symbol occurs how often, at the finest split.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frequent {
    /// Bits of a float below its symbol.
    pub below: u32,
    /// The most frequent symbol.
    pub symbol: u32,
    pub count: u32,
    /// How many have the symbol of zero.
    pub zeros: u32,
}

impl Frequent {
    /// Of counts in ascending order of symbols.
    pub(super) fn of(counts: &[(u16, u32)], below: u32) -> Self {
        let (symbol, count) =
            counts.iter().max_by_key(|(_, count)| *count).copied().unwrap_or((0, 0));
        let zeros =
            counts.first().filter(|(symbol, _)| *symbol == 0).map_or(0, |(_, count)| *count);
        Self { below, symbol: symbol.into(), count, zeros }
    }
}

/// The shortest block of these kinds; none where nothing repeats, which the first few hundred floats and the
/// counts of symbols show as a rule.
pub(super) fn shortest<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    frequent: Frequent,
    depth: u32,
) -> Option<Vec<u8>> {
    if values.is_empty() {
        return None;
    }
    let few = Few::of(values);
    let alike = values.len().min(1 << TRIED[2]);
    let pieces = depth == 0 && few.is_none() && Few::of(&values[..alike]).is_some();
    let pieces = TRIED.iter().filter(|&&bits| pieces && values.len() > 1 << bits);
    [
        write_low(kernels, format, values),
        few.map(|few| few.write(kernels, values)),
        write_one(kernels, format, values, frequent, depth),
    ]
    .into_iter()
    .flatten()
    .chain(pieces.map(|&bits| write_pieces(kernels, format, values, bits)))
    .min_by_key(Vec::len)
}

fn write_low<T: Bits>(kernels: &Kernels, format: Format, values: &[T]) -> Option<Vec<u8>> {
    let first = values[0].word();
    let mut differing = 0;
    for values in values.chunks(64) {
        differing |= values.iter().fold(0, |all, value| all | (value.word() ^ first));
        if differing & 1 == 1 {
            return None;
        }
    }
    let low = differing.trailing_zeros().min(format.mantissa);
    let mut out = vec![LOW, low as u8];
    out.extend(&(first & ((1 << low) - 1)).to_le_bytes()[..low.div_ceil(8) as usize]);
    let narrow: Vec<T> = values.iter().map(|value| T::of_word(value.word() >> low)).collect();
    floats::write_coded(kernels, format.without(low), &narrow, &mut out).then_some(out)
}

fn write_one<T: Bits>(
    kernels: &Kernels,
    format: Format,
    values: &[T],
    frequent: Frequent,
    depth: u32,
) -> Option<Vec<u8>> {
    let len = values.len() as u32;
    let zero = frequent.zeros > len / ZEROS;
    if depth == DEPTH || !(zero || frequent.count > len / OTHERS) {
        return None;
    }
    let symbol = if zero { 0 } else { frequent.symbol };
    let one = majority(values, frequent.below, format.mantissa + format.exponent, symbol)?;
    let mut others = Vec::with_capacity(values.len());
    let mask: Vec<u16> = values
        .chunks(8)
        .map(|values| {
            (0..).zip(values).fold(0, |mask, (bit, value)| {
                let same = value.word() == one;
                if !same {
                    others.push(*value);
                }
                mask | u16::from(same) << bit
            })
        })
        .collect();
    if others.len() + values.len() / ZEROS as usize > values.len() {
        return None;
    }
    let mut out = vec![ONE];
    out.extend(T::bytes(&[T::of_word(one)]));
    Code::new(&huffman::counts(&mask, 256))?.write(kernels, &mask, &mut out);
    if !others.is_empty() {
        floats::write_inside(kernels, format, &others, depth + 1, &mut out);
    }
    Some(out)
}

/// The float that most of those with a symbol are, if most are one (R. Boyer and J. Moore, "MJRTY: A Fast Majority
/// Vote Algorithm", 1981).
fn majority<T: Bits>(values: &[T], below: u32, sign: u32, symbol: u32) -> Option<u32> {
    let mask = (1 << (sign - below)) - 1;
    let (mut one, mut votes) = (None, 0);
    for word in values.iter().map(|value| value.word()) {
        if word >> below & mask != symbol {
            continue;
        }
        if votes == 0 {
            one = Some(word);
        }
        votes += if one == Some(word) { 1 } else { -1 };
    }
    one
}

fn write_pieces<T: Bits>(kernels: &Kernels, format: Format, values: &[T], bits: u8) -> Vec<u8> {
    let mut out = vec![PIECES, bits];
    for values in values.chunks(1 << bits) {
        floats::write_inside(kernels, format, values, 1, &mut out);
    }
    out
}

/// Different floats, by a hash of their bits: how many came before, once sorted.
struct Few {
    words: Vec<u32>,
    /// One more than where in `words` a float is; 0 of none.
    slots: Vec<u16>,
}

impl Few {
    const SLOTS: usize = 4 * MOST;

    /// Those of a block; none of more than [`MOST`], or more than half as many as there are.
    fn of<T: Bits>(values: &[T]) -> Option<Self> {
        let mut own = Self { words: Vec::new(), slots: vec![0; Self::SLOTS] };
        let most = MOST.min(1 + values.len() / 2);
        for value in values {
            let word = value.word();
            let slot = own.slot(word);
            if own.slots[slot] == 0 {
                own.words.push(word);
                own.slots[slot] = own.words.len() as u16;
                if own.words.len() > most {
                    return None;
                }
            }
        }
        Some(own)
    }

    /// Where a float is, or the first free place for it: fewer than half are taken.
    fn slot(&self, word: u32) -> usize {
        let mut slot = (word.wrapping_mul(0x9E37_79B1) >> 22) as usize;
        loop {
            match self.slots[slot] {
                0 => return slot,
                at if self.words[usize::from(at) - 1] == word => return slot,
                _ => slot = (slot + 1) % Self::SLOTS,
            }
        }
    }

    fn write<T: Bits>(&self, kernels: &Kernels, values: &[T]) -> Vec<u8> {
        let mut order: Vec<u16> = (0..self.words.len() as u16).collect();
        order.sort_unstable_by_key(|&at| self.words[usize::from(at)]);
        let mut ranks = vec![0; order.len()];
        let mut out = vec![FEW, (order.len() - 1) as u8];
        for (rank, &at) in (0..).zip(&order) {
            ranks[usize::from(at)] = rank;
            out.extend(T::bytes(&[T::of_word(self.words[usize::from(at)])]));
        }
        let rank = |value: &T| ranks[usize::from(self.slots[self.slot(value.word())]) - 1];
        let symbols: Vec<u16> = values.iter().map(rank).collect();
        if let Some(code) = Code::new(&huffman::counts(&symbols, MOST)) {
            code.write(kernels, &symbols, &mut out);
        }
        out
    }
}

/// Reads what follows the first byte of such a block, and returns what follows that.
pub(super) fn read<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    kind: u8,
    bytes: &'a [u8],
    out: &mut [T],
    depth: u32,
) -> Result<&'a [u8]> {
    match kind {
        LOW => read_low(kernels, format, bytes, out),
        ONE if depth < DEPTH => read_one(kernels, format, bytes, out, depth),
        FEW => read_few(kernels, bytes, out),
        PIECES if depth == 0 => {
            let (bits, mut bytes) = split(bytes, 1)?;
            if !PIECE.contains(&bits[0]) {
                return Err(Error::corrupt(
                    "pieces of floats are of none of the lengths they may have",
                ));
            }
            for out in out.chunks_mut(1 << bits[0]) {
                bytes = floats::read_inside(kernels, format, bytes, out, 1)?;
            }
            Ok(bytes)
        }
        _ => Err(Error::corrupt(
            "a block of floats begins with no number that one may begin with there",
        )),
    }
}

fn read_low<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    out: &mut [T],
) -> Result<&'a [u8]> {
    let (low, bytes) = split(bytes, 1)?;
    let low = u32::from(low[0]);
    if !(1..=format.mantissa).contains(&low) {
        return Err(Error::corrupt("floats have more bits in common than their mantissa has"));
    }
    let (constant, bytes) = split(bytes, low.div_ceil(8) as usize)?;
    let constant = constant.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    if constant >> low != 0 {
        return Err(Error::corrupt("bits follow those that floats have in common"));
    }
    let (joined, bytes) = split(bytes, 1)?;
    let rest = floats::read_coded(kernels, format.without(low), joined[0], bytes, out)?;
    for value in out {
        *value = T::of_word(value.word() << low | constant);
    }
    Ok(rest)
}

fn read_one<'a, T: Bits>(
    kernels: &Kernels,
    format: Format,
    bytes: &'a [u8],
    out: &mut [T],
    depth: u32,
) -> Result<&'a [u8]> {
    let (one, bytes) = split(bytes, size_of::<T>())?;
    let mut value = [T::of_word(0)];
    T::bytes_mut(&mut value).copy_from_slice(one);
    let mut mask = vec![0; out.len().div_ceil(8)];
    let (mut reader, bytes) = Reader::new(bytes, mask.len(), 256)?;
    reader.read(kernels, &mut mask)?;
    let beyond = 8 * mask.len() - out.len();
    if mask.last().is_some_and(|last| last << beyond >> 8 != 0) {
        return Err(Error::corrupt("bits follow the last one of a block of floats"));
    }
    let same: usize = mask.iter().map(|mask| mask.count_ones() as usize).sum();
    let mut others = vec![value[0]; out.len() - same];
    let rest = if others.is_empty() {
        bytes
    } else {
        floats::read_inside(kernels, format, bytes, &mut others, depth + 1)?
    };
    let mut next = others.into_iter();
    for (out, mask) in out.chunks_mut(8).zip(mask) {
        for (bit, out) in out.iter_mut().enumerate() {
            let other = if mask >> bit & 1 == 1 { None } else { next.next() };
            *out = other.unwrap_or(value[0]);
        }
    }
    Ok(rest)
}

fn read_few<'a, T: Bits>(kernels: &Kernels, bytes: &'a [u8], out: &mut [T]) -> Result<&'a [u8]> {
    let (count, bytes) = split(bytes, 1)?;
    let mut table = vec![T::of_word(0); 1 + usize::from(count[0])];
    let (values, bytes) = split(bytes, size_of_val(&*table))?;
    T::bytes_mut(&mut table).copy_from_slice(values);
    if !table.is_sorted_by(|a, b| a.word() < b.word()) {
        return Err(Error::corrupt("the floats of a table do not ascend"));
    }
    let (mut reader, rest) = Reader::new(bytes, out.len(), table.len())?;
    let mut symbols = [0; 2048];
    for out in out.chunks_mut(symbols.len()) {
        let symbols = &mut symbols[..out.len()];
        reader.read(kernels, symbols)?;
        for (out, symbol) in out.iter_mut().zip(symbols) {
            *out = table[usize::from(*symbol)];
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::floats::tests::normal as tensor;
    use crate::pack::floats::tests::{comes_back, halves, no_change_does_harm, singles};

    /// A tenth of the values; the others zeros of either sign, or of one.
    fn pruned(len: usize, negative: bool) -> Vec<f32> {
        let keep = tensor(len, 9);
        let all = tensor(len, 5).into_iter().zip(keep);
        all.map(|(x, keep)| {
            let zero = if negative { 0.0_f32.copysign(x) } else { 0.0 };
            if keep > 0.039 { x } else { zero }
        })
        .collect()
    }

    #[test]
    fn what_was_narrower_takes_what_the_narrower_takes() {
        for len in [700, 9000, floats::BLOCK] {
            let values = tensor(len, 3);
            let narrow = halves(&values);
            let (_, least) = comes_back(Format::BFLOAT16, &narrow);
            let wide: Vec<[u8; 4]> = narrow.iter().map(|[a, b]| [0, 0, *a, *b]).collect();
            assert_eq!(comes_back(Format::FLOAT32, &wide), (LOW, least + 4));
            // Other bits that all have serve as well as zeros; one that hardly one has does not.
            let mut wide: Vec<[u8; 4]> = narrow.iter().map(|[a, b]| [5, 0x70, *a, *b]).collect();
            assert_eq!(comes_back(Format::FLOAT32, &wide), (LOW, least + 4));
            wide[len / 2][0] = 4;
            assert_ne!(comes_back(Format::FLOAT32, &wide).0, LOW);
        }
        for low in 1..=23 {
            let values = tensor(3000, low);
            let cut = |x: f32| f32::from_bits(x.to_bits() >> low << low);
            let values: Vec<_> = values.into_iter().map(cut).collect();
            comes_back(Format::FLOAT32, &singles(&values));
            comes_back(Format::BFLOAT16, &halves(&values));
        }
    }

    #[test]
    fn floats_that_are_all_one_take_a_dozen_bytes() {
        for len in [1, 8, 9, 5000, floats::BLOCK] {
            for value in [0.0, -0.0, 1.0, f32::NAN, 3.3] {
                let (_, size) = comes_back(Format::FLOAT32, &singles(&vec![value; len]));
                assert!(size <= 9, "{len} {value} {size}");
                assert!(comes_back(Format::BFLOAT16, &halves(&vec![value; len])).1 <= 9);
            }
        }
    }

    #[test]
    fn what_is_pruned_takes_what_is_left_and_a_bit_for_each() {
        let len = floats::BLOCK;
        for (negative, bits) in [(false, 0.5), (true, 1.5)] {
            let values = pruned(len, negative);
            let left: Vec<f32> = values.iter().copied().filter(|x| *x != 0.0).collect();
            let (_, least) = comes_back(Format::FLOAT32, &singles(&left));
            let (kind, size) = comes_back(Format::FLOAT32, &singles(&values));
            assert_eq!(kind, ONE);
            assert!(size < least + (bits * len as f64 / 8.0) as usize + 50, "{size} {least}");
            assert_eq!(comes_back(Format::BFLOAT16, &halves(&values)).0, ONE);
        }
        // Another value than zero, and the others narrower.
        let values: Vec<f32> = pruned(len, false).iter().map(|x| x + 1.0).collect();
        assert_eq!(comes_back(Format::FLOAT32, &singles(&values)).0, ONE);
    }

    #[test]
    fn few_floats_are_a_table_and_rows_of_few_have_their_own() {
        let draws = tensor(floats::BLOCK, 3);
        let level = |x: &f32| (x.to_bits() >> 9 & 15) as f32 - 8.0;
        let values: Vec<f32> = draws.iter().map(|x| level(x) * 0.013).collect();
        let (kind, size) = comes_back(Format::FLOAT32, &singles(&values));
        assert!(kind == FEW && size < values.len() / 2 + 100, "{kind} {size}");
        let rows = draws.chunks(128).zip(1..);
        let values: Vec<f32> = rows
            .flat_map(|(row, i)| row.iter().map(move |x| level(x) * (0.01 + i as f32 / 7e4)))
            .collect();
        let (kind, size) = comes_back(Format::FLOAT32, &singles(&values));
        assert!(kind == PIECES && 10 * size < 3 * 4 * values.len(), "{kind} {size}");
    }

    #[test]
    fn no_change_of_the_bytes_does_any_harm() {
        let row = |(x, i): (&f32, usize)| (x.to_bits() & 7) as f32 * (i / 128) as f32;
        let rows: Vec<f32> = tensor(700, 2).iter().zip(0..).map(row).collect();
        for values in [pruned(700, true), vec![2.0; 700], rows] {
            let values = singles(&values);
            let (kernels, mut bytes) = (Kernels::current(), Vec::new());
            floats::write(kernels, Format::FLOAT32, &values, &mut bytes);
            let mut out = vec![[0; 4]; values.len()];
            no_change_does_harm(&bytes, |bytes| {
                floats::read(kernels, Format::FLOAT32, bytes, &mut out).map(drop)
            });
        }
    }

    #[test]
    fn blocks_that_may_not_be_are_refused() {
        let read = |bytes: &[u8], len| {
            floats::read(Kernels::current(), Format::BFLOAT16, bytes, &mut vec![[0; 2]; len])
                .is_err()
        };
        let all = [ONE, 0, 0, 0, 255, 0];
        assert!(!read(&all, 8));
        assert!(read(&all, 7), "a bit beyond the last float");
        let none = [ONE, 0, 0, 0, 0, 0];
        let inside = |depth: usize| [none.repeat(depth), all.to_vec()].concat();
        assert!(!read(&inside(2), 8));
        assert!(read(&inside(3), 8), "too deep");
        assert!(!read(&[&[PIECES, 7][..], &all].concat(), 8));
        for bits in [0, 6, 16, 255] {
            assert!(read(&[&[PIECES, bits][..], &all].concat(), 8), "{bits}");
        }
        assert!(read(&[&[PIECES, 7, PIECES, 7][..], &all].concat(), 8), "pieces of pieces");
        assert!(!read(&[FEW, 1, 0, 0, 1, 0, 0, 1, 0], 3));
        assert!(read(&[FEW, 1, 1, 0, 1, 0, 0, 1, 0], 3), "a float twice");
        assert!(read(&[FEW, 1, 0, 0, 1, 0, 0, 2, 0], 3), "beyond the table");
        assert!(!read(&[LOW, 7, 5, 0, 0, 1, 0, 0], 8));
        assert!(read(&[LOW, 7, 0x85, 0, 0, 1, 0, 0], 8), "more bits than in common");
        assert!(read(&[LOW, 7, 5, 1, 0, 1, 0, 0], 8), "no mantissa is left");
        assert!(read(&[LOW, 0, 0, 0, 1, 0, 0], 8) && read(&[LOW, 8, 0, 0, 0, 1, 0, 0], 8));
        assert!(read(&[16], 8) && read(&[200], 8));
    }
}
