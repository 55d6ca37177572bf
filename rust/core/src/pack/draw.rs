//! Seeded: positions that the reader draws again.
//!
//! A section is one byte that says how they are drawn, and eight bytes of key. Its length does not
//! depend on the number of positions.

use std::ops::Range;

use super::LONGEST_BLOCK;
use crate::rng::Key;
use crate::simd::Kernels;
use crate::simd::draws::NONE;
use crate::{Error, Result, allocate};

/// Bytes of a section.
pub(super) const LEN: usize = 9;

/// How positions are drawn, as its number in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DrawKind {
    /// Any set of so many positions, each as likely as the other.
    Subset = 0,
    /// Consecutive positions from a random one on, going on at 0 after the last.
    Run = 1,
}

/// Positions that follow from a key, the number of elements and the number of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Draw {
    /// How they are drawn.
    pub kind: DrawKind,
    /// What they are drawn with.
    pub key: Key,
}

/// Elements for each position drawn up to which a bit for each element takes less memory, and time,
/// than a list that is sorted.
const SPARSE: u64 = 128;

/// Positions drawn before they are marked.
const BATCH: usize = 1024;

/// Positions read off the marks at once.
const AT_ONCE: usize = 6;

impl Draw {
    pub(super) fn to_bytes(self) -> [u8; LEN] {
        let mut out = [self.kind as u8; LEN];
        out[1..].copy_from_slice(&self.key.to_bits().to_le_bytes());
        out
    }

    /// The draw that a section holds.
    pub(super) fn read(section: &[u8]) -> Result<Self> {
        let Some((&kind, key)) = section.split_first() else {
            return Err(Error::corrupt("the index section is too short for a key"));
        };
        let Ok(key) = key.try_into() else {
            let len = section.len();
            return Err(Error::corrupt(format!("index section has {len} bytes instead of {LEN}")));
        };
        let kind = match kind {
            0 => DrawKind::Subset,
            1 => DrawKind::Run,
            other => {
                return Err(Error::corrupt(format!("unknown method {other} of drawing positions")));
            }
        };
        Ok(Self { kind, key: Key::from_bits(u64::from_le_bytes(key)) })
    }

    /// The positions, ascending, in place of what `out` held. Takes memory in proportion to `count`,
    /// which is at most `numel`; an error where there is none.
    pub fn positions_into(
        self,
        kernels: &Kernels,
        numel: u64,
        count: u64,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        out.clear();
        if count == 0 {
            return Ok(());
        }
        let words = self.words(numel);
        match self.kind {
            DrawKind::Run => {
                allocate::reserve(out, count as usize)?;
                out.extend(self.runs(numel, count).into_iter().flatten());
                Ok(())
            }
            DrawKind::Subset if 2 * count > numel => {
                mark(kernels, &words, numel, numel - count, true, out)
            }
            DrawKind::Subset if count * SPARSE >= numel => {
                mark(kernels, &words, numel, count, false, out)
            }
            DrawKind::Subset => list(words, count, out),
        }
    }
}

/// How positions that are drawn were put down.
pub(super) enum Stored {
    /// All of them.
    List,
    /// A bit for each element, in the order of bytes of a bitmap.
    Bits,
    /// Not at all: they are these.
    Runs([Range<u32>; 2]),
}

impl Draw {
    fn words(self, numel: u64) -> Words {
        Words { key: self.key, at: 0, numel: numel as u32 }
    }

    /// What [`DrawKind::Run`] draws: what is before the end of the tensor comes last.
    fn runs(self, numel: u64, count: u64) -> [Range<u32>; 2] {
        let start = u64::from(self.words(numel).next());
        let end = start + count;
        [0..end.saturating_sub(numel) as u32, start as u32..end.min(numel) as u32]
    }

    /// Puts positions, at least one, into `out` in the way that takes the least memory and time.
    pub(super) fn stored(
        self,
        kernels: &Kernels,
        numel: u64,
        count: u64,
        out: &mut Vec<u32>,
    ) -> Result<Stored> {
        if self.kind == DrawKind::Run {
            return Ok(Stored::Runs(self.runs(numel, count)));
        }
        if count <= LONGEST_BLOCK as u64 || count * SPARSE < numel {
            self.positions_into(kernels, numel, count, out)?;
            return Ok(Stored::List);
        }
        let others = 2 * count > numel;
        out.clear();
        allocate::resize(out, numel.div_ceil(32) as usize)?;
        draw_marks(kernels, &self.words(numel), if others { numel - count } else { count }, out);
        for mark in &mut *out {
            *mark = if others { !*mark } else { *mark }.to_le();
        }
        if let Some(last) = out.last_mut() {
            let beyond = out_of(numel);
            *last &= (u32::MAX >> beyond).to_le();
        }
        Ok(Stored::Bits)
    }
}

/// Bits of the last mark that belong to no element.
fn out_of(numel: u64) -> u32 {
    (numel.wrapping_neg() % 32) as u32
}

/// Random positions below `numel`, each as likely, one after the other.
struct Words {
    key: Key,
    at: u32,
    numel: u32,
}

impl Words {
    /// The upper half of word times `numel`. Words whose lower half is below `2^32 mod numel` are
    /// skipped: those left are equally many for each position (D. Lemire, "Fast Random Integer
    /// Generation in an Interval", ACM Trans. Model. Comput. Simul. 2019).
    ///
    /// The words of a key are a permutation of all 32-bit numbers. So every position comes up in the
    /// end, and asking for distinct ones is sure to end, whatever the key.
    #[inline(always)]
    fn next(&mut self) -> u32 {
        loop {
            let product = u64::from(self.key.bits(self.at)) * u64::from(self.numel);
            self.at = self.at.wrapping_add(1);
            // The remainder is below `numel`: a division is needed only where that does not decide.
            if product as u32 >= self.numel
                || product as u32 >= self.numel.wrapping_neg() % self.numel
            {
                return (product >> 32) as u32;
            }
        }
    }
}

/// The first `count` distinct positions, or with `others` all but those, by a bit for each element
/// behind the room for the result.
fn mark(
    kernels: &Kernels,
    words: &Words,
    numel: u64,
    count: u64,
    others: bool,
    out: &mut Vec<u32>,
) -> Result<()> {
    let size = if others { numel - count } else { count } as usize;
    let slots = size + AT_ONCE;
    allocate::resize(out, slots + numel.div_ceil(32) as usize)?;
    let (slots, marks) = out.split_at_mut(slots);
    draw_marks(kernels, words, count, marks);
    let mut found = 0;
    for (i, &mark) in marks.iter().enumerate() {
        let mut left = if others { !mark } else { mark };
        let mut end = found;
        found += left.count_ones() as usize;
        // Bits beyond the tensor find no slot left: those of positions come first.
        while left != 0 {
            let Some(slots) = slots.get_mut(end..end + AT_ONCE) else { break };
            // Always so many, whether there are or not: a loop over those there are would be
            // mispredicted at the end of each mark.
            for slot in slots {
                *slot = (i as u32 * 32).wrapping_add(left.trailing_zeros());
                left &= left.wrapping_sub(1);
            }
            end += AT_ONCE;
        }
    }
    out.truncate(size);
    Ok(())
}

/// Sets the bits of the first `count` distinct positions; all are zero before.
fn draw_marks(kernels: &Kernels, words: &Words, count: u64, marks: &mut [u32]) {
    let Words { key, mut at, numel: below } = *words;
    let mut missing = count;
    let mut drawn = [0; BATCH];
    while missing > 0 {
        // At most as many as are missing: no draw is one too many.
        let drawn = &mut drawn[..missing.min(BATCH as u64) as usize];
        kernels.draws(key, at, below, drawn);
        at = at.wrapping_add(drawn.len() as u32);
        for &position in drawn.iter().filter(|&&position| position != NONE) {
            let (mark, bit) = (&mut marks[position as usize / 32], 1 << (position % 32));
            missing -= u64::from(*mark & bit == 0);
            *mark |= bit;
        }
    }
}

/// The first `count` distinct positions, by sorting: draws as many as are missing until none is.
fn list(mut words: Words, count: u64, out: &mut Vec<u32>) -> Result<()> {
    allocate::reserve(out, count as usize)?;
    while (out.len() as u64) < count {
        out.extend((out.len() as u64..count).map(|_| words.next()));
        out.sort_unstable();
        out.dedup();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use crate::simd::available_levels;

    fn drawn(kind: DrawKind, key: u64, numel: u64, count: u64) -> Vec<u32> {
        let key = Key::new(key, 0, 0, 0);
        let mut drawn = available_levels().into_iter().map(|level| {
            let (kernels, mut out) = (Kernels::of(level).unwrap(), vec![9; 5]);
            Draw { kind, key }.positions_into(kernels, numel, count, &mut out).unwrap();
            out
        });
        let first = drawn.next().unwrap();
        assert!(drawn.all(|other| other == first), "every level draws the same");
        first
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes too many draws")]
    fn subsets_are_those_of_the_naive_draw() {
        for numel in [1, 2, 31, 32, 33, 64, 100, 1000, 4097] {
            let few = (0..=numel.min(40)).chain([numel / 3, numel / 2, numel / 2 + 1]);
            for count in few.chain([numel - 1, numel]) {
                let expected = reference::subset(Key::new(count, 0, 0, 0), numel, count);
                assert_eq!(drawn(DrawKind::Subset, count, numel, count), expected);
            }
        }
        // By list, with positions drawn twice, and of the largest tensor there is.
        for (numel, count) in [(129_000, 1000), (1 << 20, 5000), (u64::from(u32::MAX), 100)] {
            let expected = reference::subset(Key::new(1, 0, 0, 0), numel, count);
            assert_eq!(drawn(DrawKind::Subset, 1, numel, count), expected);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes too many draws")]
    fn runs_wrap_around_and_begin_anywhere() {
        let mut starts = [0u32; 10];
        for key in 0..4000 {
            let run = drawn(DrawKind::Run, key, 10, 4);
            let is_in = |p: u32| run.contains(&(p % 10));
            let start = (0..10).find(|&p| is_in(p) && !is_in(p + 9)).unwrap();
            assert_eq!(run.len(), 4);
            assert!(run.is_sorted() && (start..start + 4).all(is_in));
            starts[start as usize] += 1;
        }
        // Each begins about 400 runs, with a standard error of 19.
        assert!(starts.iter().all(|n| n.abs_diff(400) < 76), "{starts:?}");
        assert_eq!(drawn(DrawKind::Run, 3, 7, 7), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn a_draw_goes_through_its_section() {
        for kind in [DrawKind::Subset, DrawKind::Run] {
            let draw = Draw { kind, key: Key::from_bits(0x0123_4567_89AB_CDEF) };
            let bytes = draw.to_bytes();
            assert_eq!(bytes[1..3], [0xEF, 0xCD]);
            assert_eq!(Draw::read(&bytes), Ok(draw));
            for len in 0..LEN {
                assert!(Draw::read(&bytes[..len]).is_err());
            }
            assert!(Draw::read(&[&bytes[..], &[0]].concat()).is_err());
        }
        assert!(Draw::read(&[2; LEN]).is_err());
    }
}
