//! Bit streams, least significant bit first: fixed-width fields, and set bits found by words.

/// Writes fields of `width` bits (at most 31), one after the other, from the first bit of `out`.
///
/// Fills the bytes that the fields reach; the last one is padded with zeros.
pub(super) fn write_fields(out: &mut [u8], width: u8, fields: impl Iterator<Item = u32>) {
    if width == 0 {
        return;
    }
    let (mut pending, mut filled, mut at) = (0_u64, 0_u32, 0);
    for field in fields {
        pending |= u64::from(field) << filled;
        filled += u32::from(width);
        if filled >= 32 {
            out[at..at + 4].copy_from_slice(&(pending as u32).to_le_bytes());
            at += 4;
            pending >>= 32;
            filled -= 32;
        }
    }
    let rest = filled.div_ceil(8) as usize;
    out[at..at + rest].copy_from_slice(&pending.to_le_bytes()[..rest]);
}

/// Fields of equal width, read at any index.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    width: usize,
    mask: u32,
}

impl<'a> Fields<'a> {
    /// Fields of `width` bits (at most 31) from the first bit of `bytes`, which may go on after them.
    pub(super) fn new(bytes: &'a [u8], width: u8) -> Self {
        Self { bytes, width: usize::from(width), mask: (1 << width) - 1 }
    }

    /// Field `index`; bits beyond the end of the bytes read as zero.
    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> u32 {
        let bit = index * self.width;
        let rest = self.bytes.get(bit >> 3..).unwrap_or_default();
        let word = match rest.first_chunk() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => short_word(rest),
        };
        (word >> (bit & 7)) as u32 & self.mask
    }
}

/// Fewer than eight bytes as a word, zeros above them.
fn short_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Sets the bits at these ascending positions, counted from bit `from` of `out`, and clears the
/// others after `from`. Bits before `from` stay.
pub(super) fn write_ones(out: &mut [u8], from: usize, positions: impl Iterator<Item = usize>) {
    let out = &mut out[from >> 3..];
    let skip = from & 7;
    let mut word = if skip == 0 { 0 } else { u64::from(out[0]) };
    out.fill(0);
    let mut current = 0;
    for position in positions {
        let bit = position + skip;
        if bit >> 6 != current {
            store_word(out, current, word);
            (current, word) = (bit >> 6, 0);
        }
        word |= 1 << (bit & 63);
    }
    store_word(out, current, word);
}

/// Stores as much of a word as `out` has room for.
#[inline(always)]
fn store_word(out: &mut [u8], index: usize, word: u64) {
    let rest = &mut out[index * 8..];
    if let Some(chunk) = rest.first_chunk_mut() {
        *chunk = word.to_le_bytes();
    } else {
        let len = rest.len();
        rest.copy_from_slice(&word.to_le_bytes()[..len]);
    }
}

/// A run of bits that starts anywhere in a byte string and goes on to its end.
#[derive(Clone, Copy)]
pub(super) struct Ones<'a> {
    bytes: &'a [u8],
    skip: usize,
}

impl<'a> Ones<'a> {
    /// The bits of `bytes` from bit `from` on.
    pub(super) fn new(bytes: &'a [u8], from: usize) -> Self {
        Self { bytes: bytes.get(from >> 3..).unwrap_or_default(), skip: from & 7 }
    }

    /// Calls `visit` with each word and the position of its first bit; bits skipped are zero.
    #[inline(always)]
    fn for_each_word(self, mut visit: impl FnMut(u64, usize)) {
        let (words, rest) = self.bytes.as_chunks();
        let mut mask = u64::MAX << self.skip;
        let mut base = 0_usize.wrapping_sub(self.skip);
        for word in words {
            visit(u64::from_le_bytes(*word) & mask, base);
            mask = u64::MAX;
            base = base.wrapping_add(64);
        }
        visit(short_word(rest) & mask, base);
    }

    /// Calls `visit` with the position of each set bit, ascending.
    #[inline(always)]
    pub(super) fn for_each(self, mut visit: impl FnMut(usize)) {
        self.for_each_word(|mut word, base| {
            while word != 0 {
                visit(base.wrapping_add(word.trailing_zeros() as usize));
                word &= word - 1;
            }
        });
    }

    /// How many bits are set, and one more than the position of the last one.
    pub(super) fn count_and_end(self) -> (u64, u64) {
        let (mut count, mut end) = (0, 0);
        self.for_each_word(|word, base| {
            count += u64::from(word.count_ones());
            if word != 0 {
                end = base.wrapping_add(64 - word.leading_zeros() as usize) as u64;
            }
        });
        (count, end)
    }
}
