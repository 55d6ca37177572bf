//! Canonical Huffman codes of at most twelve bits (D. Huffman, "A Method for the Construction of
//! Minimum-Redundancy Codes", Proc. IRE 1952; E. Schwartz and B. Kallick, "Generating a Canonical Prefix
//! Encoding", CACM 1964).
//!
//! A block has a table and some bit streams, least significant bit first. Symbol `i` is in stream `i` modulo
//! their number: all of them are read at once, in the order of symbols, and each lookup of one has time for its
//! answer while the others are looked up.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 0: all symbols are the one in the next two bytes, and nothing follows; 1: a table follows |
//! | | a nibble for each symbol from 0 on, the lower half of a byte first, until the codes are those of a tree |
//! | 2 each | the length of each stream in bytes |
//! | | the streams: one of fewer than 2048 symbols, else eight |
//!
//! A nibble of 1 to 12 is the length of a code, and 0 that of a symbol that does not occur. 13, 14 and 15 stand
//! for as many of these as the number in the next one, two or three nibbles, and 3, 19 or 275 more.
//!
//! Codes of a length count up with the symbols, and begin after those of the length before, doubled. A code is
//! written from its highest bit on.

use crate::simd::Kernels;
pub use crate::simd::codes::ALPHABET;
use crate::simd::codes::{Codes, End, LONGEST, RUN, SLOTS, STREAMS, Slots, word};
use crate::{Error, Result};

/// Different symbols that a block may have.
pub const MOST: usize = 256;

/// Symbols of a block at most.
pub const BLOCK: usize = 1 << 16;

/// Symbols from which a block has so many streams.
const SHORT: usize = 2048;

/// Symbols that are sorted to be counted, which is faster for so few.
const FEW: usize = 512;

/// Bits on average below which codes are read by eight: more would seldom fit what one load brings.
const SHORT_CODE: usize = 6;

/// The shortest runs of zeros that are written in one, two and three nibbles more.
const RUNS: [usize; 3] = [3, 3 + 16, 3 + 16 + 256];

/// A nibble from which on it means such a run.
const FIRST_RUN: u8 = LONGEST as u8 + 1;

/// How many streams a block of so many symbols has.
fn streams(len: usize) -> usize {
    if len < SHORT { 1 } else { STREAMS }
}

/// The symbols that occur, in ascending order, and how often each does; all are below `alphabet`.
pub fn counts(symbols: &[u16], alphabet: usize) -> Vec<(u16, u32)> {
    if symbols.len() < FEW {
        let mut sorted = symbols.to_vec();
        sorted.sort_unstable();
        return sorted.chunk_by(u16::eq).map(|equal| (equal[0], equal.len() as u32)).collect();
    }
    // Tables in turn: equal symbols one after the other do not wait for each other.
    let mut counts = vec![0_u32; 4 * alphabet];
    let (a, rest) = counts.split_at_mut(alphabet);
    let (b, rest) = rest.split_at_mut(alphabet);
    let (c, d) = rest.split_at_mut(alphabet);
    let (fours, rest) = symbols.as_chunks::<4>();
    for four in fours {
        let four = four.map(usize::from);
        a[four[0]] += 1;
        b[four[1]] += 1;
        c[four[2]] += 1;
        d[four[3]] += 1;
    }
    for symbol in rest {
        a[usize::from(*symbol)] += 1;
    }
    let all = a.iter().zip(b).zip(c.iter().zip(d)).map(|((a, b), (c, d))| *a + *b + *c + *d);
    (0..).zip(all).filter(|(_, count)| *count > 0).collect()
}

/// The codes of the symbols of a block.
#[derive(Debug)]
pub struct Code {
    /// The length of the code of each symbol that occurs, in ascending order; 0 of a single one.
    lengths: Vec<(u16, u8)>,
}

impl Code {
    /// The code for symbols that occur so often, in ascending order; none of no symbols, or of more than
    /// [`MOST`].
    pub fn new(counts: &[(u16, u32)]) -> Option<Self> {
        if counts.is_empty() || counts.len() > MOST {
            return None;
        }
        let mut used: Vec<(u32, u16)> = counts.iter().map(|&(symbol, n)| (n, symbol)).collect();
        used.sort_unstable();
        let counts: Vec<u32> = used.iter().map(|(count, _)| *count).collect();
        let symbols = used.iter().map(|(_, symbol)| *symbol);
        let mut lengths: Vec<(u16, u8)> = symbols.zip(minimum_redundancy(&counts)).collect();
        lengths.sort_unstable();
        Some(Self { lengths })
    }

    /// About the bytes of a block of the symbols that it was made for.
    pub(super) fn len(&self, counts: &[(u16, u32)]) -> usize {
        let both = self.lengths.iter().zip(counts);
        let bits = both.map(|((_, length), (_, count))| *count as usize * usize::from(*length));
        bits.sum::<usize>() / 8 + self.lengths.len() / 2
    }

    /// By symbol.
    fn codes(&self) -> Box<Codes> {
        let mut codes = Box::new([0; ALPHABET]);
        each_code(&self.lengths, |symbol, code, length| {
            codes[usize::from(symbol) % ALPHABET] = code << 16 | u32::from(length);
        });
        codes
    }

    /// Appends a block of at most [`BLOCK`] symbols, for whose counts the code was made.
    pub fn write(&self, kernels: &Kernels, symbols: &[u16], out: &mut Vec<u8>) {
        if let [(symbol, 0)] = *self.lengths {
            out.push(0);
            out.extend(symbol.to_le_bytes());
            return;
        }
        let codes = self.codes();
        out.push(1);
        self.write_table(out);
        let many = streams(symbols.len());
        let sizes = out.len();
        let room = (symbols.len().div_ceil(many) * LONGEST as usize).div_ceil(8) + 8;
        let start = sizes + 2 * many;
        out.resize(start + many * room, 0);
        let (mut ends, buffers) = ([End::default(); STREAMS], &mut out[start..]);
        // Whole runs of a single stream are none.
        let whole =
            if many == STREAMS { symbols.len() - symbols.len() % (RUN * STREAMS) } else { 0 };
        kernels.write_codes(&codes, &symbols[..whole], room, &mut ends, buffers);
        for row in symbols[whole..].chunks(many) {
            for ((symbol, end), out) in row.iter().zip(&mut ends).zip(buffers.chunks_mut(room)) {
                end.add(codes[usize::from(*symbol) % ALPHABET], out);
            }
        }
        // The streams move up to each other.
        let mut to = start;
        for (i, end) in ends[..many].iter().enumerate() {
            let (from, len) = (start + i * room, end.at + usize::from(end.filled > 0));
            if end.filled > 0 {
                out[from + end.at] = end.pending as u8;
            }
            out.copy_within(from..from + len, to);
            to += len;
            out[sizes + 2 * i..][..2].copy_from_slice(&(len as u16).to_le_bytes());
        }
        out.truncate(to);
    }

    fn write_table(&self, out: &mut Vec<u8>) {
        let mut nibbles = Vec::with_capacity(2 * MOST);
        let mut next = 0;
        for &(symbol, length) in &self.lengths {
            let mut zeros = usize::from(symbol) - next;
            while zeros > 0 {
                if zeros < RUNS[0] {
                    nibbles.push(0);
                    zeros -= 1;
                    continue;
                }
                let more = RUNS.iter().filter(|least| zeros >= **least).count();
                let beyond = zeros - RUNS[more - 1];
                nibbles.push(FIRST_RUN + more as u8 - 1);
                nibbles.extend((0..more).map(|i| (beyond >> (4 * i) & 15) as u8));
                zeros = 0;
            }
            nibbles.push(length);
            next = usize::from(symbol) + 1;
        }
        out.extend(nibbles.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4));
    }
}

/// Lengths of codes for counts in ascending order, none above [`LONGEST`]; of a single count 0.
///
/// A. Moffat and J. Katajainen, "In-Place Calculation of Minimum-Redundancy Codes", WADS 1995. Codes that are too
/// long are cut, and those of the rarest symbols that are not made longer until all fit.
fn minimum_redundancy(counts: &[u32]) -> Vec<u8> {
    let len = counts.len();
    if len < 2 {
        return vec![0; len];
    }
    // Parents of the inner nodes, over their weights, over the counts.
    let mut tree = counts.to_vec();
    let (mut leaf, mut root) = (0, 0);
    for next in 0..len - 1 {
        let mut weight = 0;
        for _ in 0..2 {
            if leaf >= len || (root < next && tree[root] < tree[leaf]) {
                weight += tree[root];
                tree[root] = next as u32;
                root += 1;
            } else {
                weight += tree[leaf];
                leaf += 1;
            }
        }
        tree[next] = weight;
    }
    // Depths of the inner nodes.
    tree[len - 2] = 0;
    for next in (0..len - 2).rev() {
        tree[next] = tree[tree[next] as usize] + 1;
    }
    // Those of the leaves, deepest first: the rarest are first.
    let mut lengths = vec![0; len];
    let (mut available, mut depth, mut inner, mut next) = (1, 0, len - 1, len);
    while available > 0 {
        let mut used = 0;
        while inner > 0 && tree[inner - 1] == depth {
            used += 1;
            inner -= 1;
        }
        for _ in used..available {
            next -= 1;
            lengths[next] = depth.min(LONGEST) as u8;
        }
        available = 2 * used;
        depth += 1;
    }
    let share = |length: u8| SLOTS >> length;
    let mut taken: usize = lengths.iter().map(|length| share(*length)).sum();
    // From the rarest on: each step of a code from one bit below the longest frees the least.
    while taken > SLOTS {
        let best =
            (0..len).rev().filter(|i| u32::from(lengths[*i]) < LONGEST).max_by_key(|i| lengths[*i]);
        let Some(i) = best else { break };
        taken -= share(lengths[i]) / 2;
        lengths[i] += 1;
    }
    // What is free goes to the most frequent that can take it.
    for length in lengths.iter_mut().rev() {
        while *length > 1 && taken + share(*length) <= SLOTS {
            taken += share(*length);
            *length -= 1;
        }
    }
    lengths
}

/// Calls `visit` with each symbol, its code, the first bit in the lowest, and the length of that.
fn each_code(lengths: &[(u16, u8)], mut visit: impl FnMut(u16, u32, u8)) {
    let mut code = 0_u32;
    for length in 1..=LONGEST as u8 {
        code <<= 1;
        for (symbol, _) in lengths.iter().filter(|(_, own)| *own == length) {
            visit(*symbol, code.reverse_bits() >> (32 - u32::from(length)), length);
            code += 1;
        }
    }
}

/// A block that is being read.
#[derive(Debug)]
pub struct Reader<'a> {
    slots: Box<Slots>,
    bytes: &'a [u8],
    /// The next bit of each stream, and where it ends, in bits of `bytes`.
    at: [usize; STREAMS],
    ends: [usize; STREAMS],
    many: usize,
    /// Symbols that were read, and all there are.
    next: usize,
    len: usize,
}

impl<'a> Reader<'a> {
    /// Reads the table of a block of `len` symbols below `alphabet`. Returns what follows the block, too.
    pub fn new(bytes: &'a [u8], len: usize, alphabet: usize) -> Result<(Self, &'a [u8])> {
        let mut own = Self {
            slots: Box::new([0; SLOTS]),
            bytes: &[],
            at: [0; STREAMS],
            ends: [0; STREAMS],
            many: streams(len),
            next: 0,
            len,
        };
        let (kind, bytes) = split(bytes, 1)?;
        match kind[0] {
            0 => {
                let (symbol, rest) = split(bytes, 2)?;
                let symbol = u16::from_le_bytes([symbol[0], symbol[1]]);
                if usize::from(symbol) >= alphabet {
                    return Err(Error::corrupt("a symbol is not in its alphabet"));
                }
                own.slots.fill(u32::from(symbol) << 16);
                Ok((own, rest))
            }
            1 => {
                let bytes = read_table(bytes, alphabet, &mut own.slots)?;
                let (sizes, bytes) = split(bytes, 2 * own.many)?;
                let mut end = 0;
                for (i, size) in sizes.as_chunks().0.iter().enumerate() {
                    own.at[i] = 8 * end;
                    end += usize::from(u16::from_le_bytes(*size));
                    own.ends[i] = 8 * end;
                }
                let (streams, rest) = split(bytes, end)?;
                own.bytes = streams;
                Ok((own, rest))
            }
            _ => Err(Error::corrupt("a block of codes begins with neither 0 nor 1")),
        }
    }

    /// The symbol that all are.
    pub(super) fn single(&self) -> Option<u16> {
        let slot = self.slots[0];
        (slot.trailing_zeros() >= 8).then_some((slot >> 16) as u16)
    }

    /// The next symbols: a multiple of 32 but for the last ones.
    pub fn read(&mut self, kernels: &Kernels, out: &mut [u16]) -> Result<()> {
        let taken = self.next + out.len();
        if taken > self.len || (taken < self.len && !out.len().is_multiple_of(RUN * STREAMS)) {
            return Err(Error::argument("a block has no such symbols"));
        }
        if let Some(symbol) = self.single() {
            out.fill(symbol);
            self.next = taken;
            return Ok(());
        }
        let whole = if self.many == STREAMS { out.len() - out.len() % (RUN * STREAMS) } else { 0 };
        let (runs, rows) = out.split_at_mut(whole);
        let short = 8 * self.bytes.len() < SHORT_CODE * self.len;
        kernels.read_codes(&self.slots, self.bytes, short, &mut self.at, runs);
        for row in rows.chunks_mut(self.many) {
            for (out, at) in row.iter_mut().zip(&mut self.at) {
                let slot = self.slots[word(self.bytes, *at) as usize % SLOTS];
                *out = (slot >> 16) as u16;
                *at += (slot & 0xFF) as usize;
            }
        }
        self.next = taken;
        if self.at.iter().zip(&self.ends).any(|(at, end)| at > end) {
            return Err(Error::corrupt("a stream of codes ends early"));
        }
        if taken == self.len {
            for (at, end) in self.at.iter().zip(&self.ends) {
                let padding = end - at;
                let last = self.bytes.get((end / 8).wrapping_sub(1)).copied().unwrap_or(0);
                if padding > 7 || u32::from(last) >> (8 - padding) != 0 {
                    return Err(Error::corrupt("bits follow the last code of a stream"));
                }
            }
        }
        Ok(())
    }
}

/// Reads lengths until they are a complete code, and returns what follows their last byte.
fn read_table<'a>(bytes: &'a [u8], alphabet: usize, slots: &mut Slots) -> Result<&'a [u8]> {
    let mut nibbles = Nibbles { bytes, at: 0 };
    let mut lengths = Vec::with_capacity(MOST);
    let (mut symbol, mut taken) = (0, 0);
    while taken < SLOTS {
        let length = nibbles.next()?;
        if length >= FIRST_RUN {
            let more = usize::from(length - FIRST_RUN);
            symbol += RUNS[more];
            for i in 0..=more {
                symbol += usize::from(nibbles.next()?) << (4 * i);
            }
        } else {
            if length > 0 {
                taken += SLOTS >> length;
                lengths.push((symbol as u16, length));
            }
            symbol += 1;
        }
        if symbol > alphabet || lengths.len() > MOST {
            return Err(Error::corrupt("a table of codes has more symbols than there can be"));
        }
    }
    if taken > SLOTS {
        return Err(Error::corrupt("the codes of a table are not those of a tree"));
    }
    if nibbles.at % 2 == 1 && nibbles.next()? != 0 {
        return Err(Error::corrupt("a table of codes is not padded with zeros"));
    }
    each_code(&lengths, |symbol, code, length| {
        let slot = u32::from(symbol) << 16 | u32::from(length);
        slots.iter_mut().skip(code as usize).step_by(1 << length).for_each(|to| *to = slot);
    });
    Ok(&bytes[nibbles.at / 2..])
}

/// Reads halves of bytes, the lower one first.
struct Nibbles<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Nibbles<'_> {
    fn next(&mut self) -> Result<u8> {
        let (need, have) = (self.at as u64 / 2 + 1, self.bytes.len() as u64);
        let missing = Error::Truncated { what: "table of codes", need, have };
        let byte = self.bytes.get(self.at / 2).ok_or(missing)?;
        self.at += 1;
        Ok(if self.at % 2 == 1 { byte & 15 } else { byte >> 4 })
    }
}

pub(super) fn split(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8])> {
    let missing =
        Error::Truncated { what: "block of codes", need: len as u64, have: bytes.len() as u64 };
    bytes.split_at_checked(len).ok_or(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::floats::tests::no_change_does_harm;

    fn code(symbols: &[u16]) -> Option<Code> {
        Code::new(&counts(symbols, ALPHABET))
    }

    fn written(symbols: &[u16]) -> Vec<u8> {
        let mut out = Vec::new();
        code(symbols).unwrap().write(Kernels::current(), symbols, &mut out);
        out
    }

    fn read(bytes: &[u8], len: usize, alphabet: usize, chunk: usize) -> Result<Vec<u16>> {
        let (mut reader, rest) = Reader::new(bytes, len, alphabet)?;
        if !rest.is_empty() {
            return Err(Error::corrupt("bytes follow"));
        }
        let mut out = vec![0; len];
        for chunk in out.chunks_mut(chunk) {
            reader.read(Kernels::current(), chunk)?;
        }
        Ok(out)
    }

    /// Symbols that become rarer by a factor, from `first` on.
    fn skewed(len: usize, first: u16, ratio: f64, seed: u64) -> Vec<u16> {
        let mut state = seed | 1;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        };
        (0..len).map(|_| first + (libm::log(draw()) / libm::log(ratio)).min(200.0) as u16).collect()
    }

    #[test]
    fn symbols_come_back_however_many_there_are_and_are_read_at_once() {
        for len in [1, 2, 3, 31, 32, 33, 2047, 2048, 2049, 2048 + 77, 10_000, BLOCK] {
            for (first, ratio) in [(0, 0.5), (1700, 0.9), (5, 0.99), (2047, 1e-300)] {
                let symbols = skewed(len, first, ratio, len as u64);
                let bytes = written(&symbols);
                for chunk in [32, 4096, BLOCK] {
                    assert_eq!(
                        read(&bytes, len, ALPHABET, chunk).unwrap(),
                        symbols,
                        "{len} {first}"
                    );
                }
            }
        }
    }

    #[test]
    fn codes_take_hardly_more_than_the_entropy_and_never_more_than_twelve_bits() {
        let fibonacci = |n: usize| {
            let next = |pair: &mut (u32, u32)| {
                *pair = (pair.1, pair.0 + pair.1);
                Some(pair.0)
            };
            std::iter::repeat_n((), n).scan((0, 1), move |pair, ()| next(pair)).collect::<Vec<_>>()
        };
        let even = vec![256; 256];
        let zipf: Vec<u32> = (1..=256).map(|i| 10_000 / i).collect();
        for counts in [fibonacci(2), fibonacci(18), fibonacci(22), even, zipf, vec![1, 60_000]] {
            let code = Code::new(&(0..).zip(counts.iter().copied()).collect::<Vec<_>>()).unwrap();
            let total: f64 = counts.iter().map(|n| f64::from(*n)).sum();
            let bits = |n: u32| f64::from(n) * libm::log2(total / f64::from(n));
            let entropy: f64 = counts.iter().map(|n| bits(*n)).sum();
            assert!(code.lengths.iter().all(|(_, length)| (1..=12).contains(length)));
            let shares: usize = code.lengths.iter().map(|(_, length)| SLOTS >> length).sum();
            assert_eq!(shares, SLOTS, "{counts:?}");
            let bound = entropy + 0.13 * total;
            let each = code.lengths.iter().map(|(symbol, length)| {
                u64::from(counts[usize::from(*symbol)]) * u64::from(*length)
            });
            let bits: u64 = each.sum();
            assert!(counts.len() == 2 || (bits as f64) < bound, "{counts:?}: {bits}");
        }
        assert!(Code::new(&[0; 257].map(|_| (0, 1))).is_none());
        assert!(Code::new(&[]).is_none());
        assert_eq!(Code::new(&[(2, 7)]).unwrap().lengths, [(2, 0)]);
    }

    #[test]
    fn no_change_of_the_bytes_does_any_harm() {
        for (len, ratio) in [(100, 0.7), (2500, 0.6), (100, 1e-300)] {
            let symbols = skewed(len, 40, ratio, 7);
            let bytes = written(&symbols);
            no_change_does_harm(&bytes, |bytes| {
                let found = read(bytes, len, 300, BLOCK)?;
                assert!(found.iter().all(|symbol| *symbol < 300));
                Ok(())
            });
            let last = usize::from(symbols.iter().max().copied().unwrap());
            assert!(read(&bytes, len, last, BLOCK).is_err(), "a symbol beyond the alphabet");
        }
    }

    #[test]
    fn tables_that_are_no_trees_are_refused() {
        let block = |nibbles: &[u8]| {
            let mut bytes = vec![1];
            bytes.extend(nibbles.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4));
            bytes.extend([1, 0, 0b10]);
            bytes
        };
        assert_eq!(read(&block(&[1, 1]), 2, 2, BLOCK).unwrap(), [0, 1]);
        assert!(read(&block(&[1, 2, 1]), 2, ALPHABET, BLOCK).is_err(), "more than a tree");
        assert!(read(&block(&[1, 1, 1]), 2, ALPHABET, BLOCK).is_err(), "not padded");
        assert!(read(&block(&[1, 0, 0, 1]), 2, 3, BLOCK).is_err(), "beyond the alphabet");
        assert!(read(&block(&[15, 15, 15, 15, 15]), 2, ALPHABET, BLOCK).is_err());
        assert!(read(&block(&[12; 300]), 2, ALPHABET, BLOCK).is_err(), "257 symbols");
        assert!(read(&[2], 2, ALPHABET, BLOCK).is_err());
    }
}
