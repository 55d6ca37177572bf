//! Codes of up to twelve bits in eight streams: looked up, and put down.
//!
//! All streams are read side by side: what comes after a code is known when that was looked up, which takes longer
//! than all else. Four codes of a stream are read by one load, and written by one store: with a part of a byte
//! they fit 64 bits. Eight mostly do where codes are short, which shows once they were read: if not, each is read again
//! by a load of its own.

use super::stamp::stamp;

/// Bits that a code has at most.
pub const LONGEST: u32 = 12;

/// The size of the table that codes are looked up in.
pub const SLOTS: usize = 1 << LONGEST;

/// Streams that are read or written.
pub const STREAMS: usize = 8;

/// Codes of a stream that go together.
pub const RUN: usize = 4;

/// For all bits that may come next: the length of the code that they begin with, and above 16 bits its symbol.
pub type Slots = [u32; SLOTS];

/// Streams that are written side by side: of more, not all is in registers.
const BESIDE: usize = 2;

/// Codes of each stream that are looked up before their symbols are taken out of the slots.
const TOGETHER: usize = 64;

/// Symbols are below this.
pub const ALPHABET: usize = 2048;

/// For all symbols: the length of their code, and above 16 bits the code, its first bit in the lowest.
pub type Codes = [u32; ALPHABET];

/// Eight bytes from one on; zeros after the last.
#[inline(always)]
fn load(bytes: &[u8], from: usize) -> u64 {
    match bytes.get(from..from + 8) {
        Some(word) => u64::from_le_bytes(*word.first_chunk().unwrap_or(&[0; 8])),
        None => last(bytes, from),
    }
}

#[cold]
#[inline(never)]
fn last(bytes: &[u8], from: usize) -> u64 {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// At least 57 bits from some bit on; zeros after the last byte.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    load(bytes, at / 8) >> (at % 8)
}

/// The same number, which the compiler knows nothing of: it makes vectors of eight, which are twice as slow.
#[inline(always)]
pub(in crate::simd) fn alone(mut word: u64) -> u64 {
    #[cfg(not(miri))]
    // SAFETY: there is no instruction.
    unsafe {
        core::arch::asm!("/* {} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
    }
    #[cfg(miri)]
    let _ = &mut word;
    word
}

/// The symbols of whole runs, of which each stream has the next in turn; `short` codes are read by eight.
#[inline(always)]
fn read_body(
    slots: &Slots,
    bytes: &[u8],
    short: bool,
    ends: &mut [usize; STREAMS],
    out: &mut [u16],
) {
    let mut found = [[0; STREAMS]; TOGETHER];
    for out in out.chunks_mut(TOGETHER * STREAMS) {
        let rows = &mut found[..out.len() / STREAMS];
        if short {
            read_rows::<{ 2 * RUN }>(slots, bytes, ends, rows);
        } else {
            read_rows::<RUN>(slots, bytes, ends, rows);
        }
        // By vectors.
        for (out, slot) in out.iter_mut().zip(rows.as_flattened()) {
            *out = (slot >> 16) as u16;
        }
    }
}

/// The slots of the next codes, `N` of each stream by one load.
///
/// The highest bit of what was loaded moves down with what is read, and so tells how much that was. A code that goes
/// beyond takes it along.
#[inline(always)]
fn read_rows<const N: usize>(
    slots: &Slots,
    bytes: &[u8],
    ends: &mut [usize; STREAMS],
    rows: &mut [[u32; STREAMS]],
) {
    const MARK: u64 = 1 << 63;
    let (runs, rest) = rows.as_chunks_mut::<N>();
    for run in runs {
        let mut words = [0; STREAMS];
        for (word, at) in words.iter_mut().zip(&*ends) {
            *word = alone((load(bytes, at / 8) | MARK) >> (at % 8));
        }
        for row in run.iter_mut() {
            for (out, word) in row.iter_mut().zip(&mut words) {
                let slot = slots[*word as usize % SLOTS];
                *out = slot;
                // By its six lowest bits.
                *word = alone(word.wrapping_shr(slot));
            }
        }
        if N > RUN && words.contains(&0) {
            read_each(slots, bytes, ends, run);
            continue;
        }
        for (at, word) in ends.iter_mut().zip(words) {
            *at = alone((*at / 8 * 8) as u64 + u64::from(word.leading_zeros())) as usize;
        }
    }
    read_each(slots, bytes, ends, rest);
}

/// The same, by a load for each.
#[cold]
#[inline(never)]
fn read_each(
    slots: &Slots,
    bytes: &[u8],
    ends: &mut [usize; STREAMS],
    rows: &mut [[u32; STREAMS]],
) {
    for row in rows {
        for (out, at) in row.iter_mut().zip(&mut *ends) {
            *out = slots[word(bytes, *at) as usize % SLOTS];
            *at += (*out & 0x3F) as usize;
        }
    }
}

/// A stream that is being written: where its next byte goes, and what is not a whole one.
#[derive(Debug, Clone, Copy, Default)]
pub struct End {
    pub(crate) at: usize,
    pub(crate) pending: u64,
    pub(crate) filled: u32,
}

impl End {
    /// Writes one more code, and eight bytes from where it begins.
    pub(crate) fn add(&mut self, code: u32, out: &mut [u8]) {
        self.pending |= u64::from(code >> 16) << self.filled;
        self.filled += code & 0xFF;
        self.flush(out);
    }

    #[inline(always)]
    fn flush(&mut self, out: &mut [u8]) {
        out[self.at..self.at + 8].copy_from_slice(&self.pending.to_le_bytes());
        self.at += self.filled as usize / 8;
        self.pending >>= self.filled & 0x38;
        self.filled &= 7;
    }
}

/// Writes the codes of whole runs of symbols, of which each stream gets the next in turn. A stream begins at
/// each `room` bytes of `out`, which has eight more behind the last code of each.
#[inline(always)]
fn write_body(
    codes: &Codes,
    symbols: &[u16],
    room: usize,
    ends: &mut [End; STREAMS],
    out: &mut [u8],
) {
    let pairs =
        ends.as_chunks_mut::<BESIDE>().0.iter_mut().zip(out.chunks_exact_mut(BESIDE * room));
    for (i, (ends, out)) in pairs.enumerate() {
        let (mut next, parts) = (*ends, out.split_at_mut(room));
        let mut parts = [parts.0, parts.1];
        for run in symbols.as_chunks::<{ RUN * STREAMS }>().0 {
            for j in 0..RUN {
                for (k, end) in next.iter_mut().enumerate() {
                    let code = codes[usize::from(run[j * STREAMS + BESIDE * i + k]) % ALPHABET];
                    end.pending |= u64::from(code >> 16) << (end.filled & 0x3F);
                    // The code above the length is cut off once all are added.
                    end.filled = end.filled.wrapping_add(code);
                }
            }
            for (end, out) in next.iter_mut().zip(&mut parts) {
                end.filled &= 0xFF;
                end.flush(out);
            }
        }
        *ends = next;
    }
}

pub(in crate::simd) mod read {
    use super::{STREAMS, Slots, read_body, stamp};
    stamp!(fn(slots: &Slots, bytes: &[u8], short: bool, at: &mut [usize; STREAMS], out: &mut [u16]) => read_body);
}

pub(in crate::simd) mod write {
    use super::{Codes, End, STREAMS, stamp, write_body};
    stamp!(fn(codes: &Codes, symbols: &[u16], room: usize, ends: &mut [End; STREAMS], out: &mut [u8]) => write_body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernels, available_levels};

    #[test]
    fn codes_of_every_level_are_those_of_a_bit_by_bit_writer_and_come_back() {
        // Symbol i has a code of i % 12 + 1 bits, a one above zeros, as in a table of no tree at all.
        let length = |symbol: usize| symbol as u32 % LONGEST + 1;
        let codes: Codes = std::array::from_fn(|i| 1 << (length(i) - 1) << 16 | length(i));
        let slots: Slots = std::array::from_fn(|bits| {
            let length = (bits as u32 | 1 << (LONGEST - 1)).trailing_zeros() + 1;
            (length - 1) << 16 | length
        });
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            for runs in [0, 1, 2, 50] {
                let len = runs * RUN * STREAMS;
                // Some eight of a stream are short, others longer than what one load brings.
                let symbols: Vec<u16> =
                    (0..len).map(|i| (i / STREAMS * (i % STREAMS + 1) % 12) as u16).collect();
                let room = len * 2 + 8;
                let (mut ends, mut out) = ([End::default(); STREAMS], vec![0; room * STREAMS]);
                kernels.write_codes(&codes, &symbols, room, &mut ends, &mut out);
                let mut found = vec![0; len];
                let at: [usize; STREAMS] = std::array::from_fn(|i| 8 * room * i);
                for (i, end) in ends.iter_mut().enumerate() {
                    out[i * room + end.at] = end.pending as u8;
                    let mut expected = vec![0_u8; room];
                    let mut bit = 0;
                    for symbol in symbols.iter().skip(i).step_by(STREAMS) {
                        bit += length(usize::from(*symbol)) as usize;
                        expected[(bit - 1) / 8] |= 1 << ((bit - 1) % 8);
                    }
                    assert_eq!(8 * end.at + end.filled as usize, bit);
                    let whole = bit.div_ceil(8);
                    assert_eq!(out[i * room..][..whole], expected[..whole]);
                }
                for short in [true, false] {
                    let mut at = at;
                    found.fill(0);
                    kernels.read_codes(&slots, &out, short, &mut at, &mut found);
                    assert_eq!(found, symbols);
                }
            }
        }
    }
}
