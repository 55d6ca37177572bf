//! Bit streams, least significant bit first: fixed-width fields, and set bits found by words.

/// Writes fields of `width` bits (at most 31), one after the other, from the first bit of `out`.
///
/// Fills the bytes that the fields reach; the last one is padded with zeros.
pub(super) fn write_fields(out: &mut [u8], width: u8, fields: impl Iterator<Item = u32>) {
    if width == 0 {
        return;
    }
    // So many fields are whole words, whatever their width.
    let mut block = [0; 64];
    let mut at = 0;
    let mut filled = 0;
    for field in fields {
        block[filled] = field;
        filled += 1;
        if filled == block.len() {
            let len = 8 * usize::from(width);
            pack_block(&block, width, &mut out[at..at + len]);
            at += len;
            filled = 0;
        }
    }
    block[filled..].fill(0);
    let mut last = [0; 8 * 31];
    pack_block(&block, width, &mut last[..8 * usize::from(width)]);
    let rest = (filled * usize::from(width)).div_ceil(8);
    out[at..at + rest].copy_from_slice(&last[..rest]);
}

/// Packs 64 fields into as many words as each has bits.
///
/// Narrow fields are joined before they join what is pending: that chain is what a field costs.
fn pack_block(fields: &[u32; 64], width: u8, out: &mut [u8]) {
    let width = u32::from(width);
    let pair = |a: u32, b: u32| u64::from(a) | u64::from(b) << width;
    match width {
        ..=8 => {
            let fours = fields.as_chunks().0.iter();
            let joined = fours.map(|&[a, b, c, d]| pair(a, b) | pair(c, d) << (2 * width));
            append(joined, 4 * width, out);
        }
        9..=16 => append(fields.as_chunks().0.iter().map(|&[a, b]| pair(a, b)), 2 * width, out),
        _ => append(fields.iter().map(|&field| u64::from(field)), width, out),
    }
}

/// Writes groups of at most 32 bits one after the other, which fill `out`.
#[inline(always)]
fn append(groups: impl Iterator<Item = u64>, bits: u32, out: &mut [u8]) {
    let (mut pending, mut filled) = (0_u64, 0);
    let (words, _) = out.as_chunks_mut();
    let mut words = words.iter_mut();
    for group in groups {
        pending |= group << filled;
        filled += bits;
        if filled >= 32 {
            if let Some(word) = words.next() {
                *word = (pending as u32).to_le_bytes();
            }
            pending >>= 32;
            filled -= 32;
        }
    }
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
    let kept = usize::from(skip > 0);
    let mut word = out[..kept].iter().fold(0, |_, &byte| u64::from(byte));
    out[kept..].fill(0);
    let (words, rest) = out.as_chunks_mut();
    let mut current = 0;
    for position in positions {
        let bit = position + skip;
        // Stored for every bit: whether a bit is in a new word is not to be foretold.
        word = if bit >> 6 == current { word } else { 0 } | 1 << (bit & 63);
        current = bit >> 6;
        if let Some(slot) = words.get_mut(current) {
            *slot = word.to_le_bytes();
        }
    }
    if current == words.len() {
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

    /// A reader of the set bits, from the first one on.
    pub(super) fn reader(self) -> OnesReader<'a> {
        let (words, rest) = self.bytes.as_chunks();
        let first =
            words.first().map_or_else(|| short_word(rest), |word| u64::from_le_bytes(*word));
        let base = 0_usize.wrapping_sub(self.skip);
        OnesReader { words, rest, at: 0, word: first & u64::MAX << self.skip, base }
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

/// Set bits one after the other, with a stop wherever one is wanted.
#[derive(Clone)]
pub(super) struct OnesReader<'a> {
    words: &'a [[u8; 8]],
    /// Fewer bytes than a word, after the words.
    rest: &'a [u8],
    /// The number of the current word.
    at: usize,
    /// The bits of it that were not read.
    word: u64,
    /// The position of its first bit.
    base: usize,
}

impl OnesReader<'_> {
    /// Calls `visit` with the positions of the next `count` set bits, or of all if there are fewer.
    #[inline(always)]
    pub(super) fn read(&mut self, mut count: usize, mut visit: impl FnMut(usize)) {
        let (mut word, mut base) = (self.word, self.base);
        loop {
            let here = (word.count_ones() as usize).min(count);
            for _ in 0..here {
                visit(base.wrapping_add(word.trailing_zeros() as usize));
                word &= word - 1;
            }
            count -= here;
            if count == 0 || self.at >= self.words.len() {
                break;
            }
            self.at += 1;
            base = base.wrapping_add(64);
            word = match self.words.get(self.at) {
                Some(word) => u64::from_le_bytes(*word),
                None => short_word(self.rest),
            };
        }
        (self.word, self.base) = (word, base);
    }
}
