//! Which entries of a frame share scales.

use std::ops::Range;

/// How entries are put into groups that share scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// There are no scales.
    None,
    /// All entries of a frame.
    Whole,
    /// So many entries in a row, whatever their positions.
    Ranks(u32),
    /// The entries at so many positions in a row, however many they are.
    Positions(u32),
}

impl Grouping {
    /// How many groups there are.
    pub fn number(self, numel: u64, count: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Whole => 1,
            Self::Ranks(len) => count.div_ceil(u64::from(len)),
            Self::Positions(len) => numel.div_ceil(u64::from(len)),
        }
    }

    /// Entries of a group where every position has one; none without groups.
    pub fn dense_len(self, numel: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Whole => Some(numel.max(1)),
            Self::Ranks(len) | Self::Positions(len) => Some((len as usize).min(numel.max(1))),
        }
    }

    /// Calls `visit` with each group that has some of the `len` entries from rank `first` on, and
    /// with which of those they are. `positions` are those of these entries; `None` if an entry's
    /// position is its rank.
    pub fn for_each_run(
        self,
        first: usize,
        len: usize,
        positions: Option<&[u32]>,
        mut visit: impl FnMut(usize, Range<usize>),
    ) {
        let mut at = 0;
        match (self, positions) {
            (Self::None | Self::Whole, _) if len > 0 => visit(0, 0..len),
            (Self::None | Self::Whole, _) => {}
            (Self::Positions(size), Some(positions)) => {
                while at < len {
                    let group = positions[at] / size;
                    let same = positions[at..len].partition_point(|p| p / size == group);
                    visit(group as usize, at..at + same);
                    at += same;
                }
            }
            (Self::Ranks(size) | Self::Positions(size), _) => {
                // Divided once: a division takes as long as a short group.
                let size = size as usize;
                let mut group = first / size;
                let mut end = (group + 1) * size - first;
                while at < len {
                    visit(group, at..end.min(len));
                    (at, group, end) = (end, group + 1, end + size);
                }
            }
        }
    }
}

/// Which entries of a frame some values are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The rank of the first of them, counted from where the scales begin.
    pub first: usize,
    /// The same counted from the beginning of the frame.
    pub drawn: usize,
    /// Their positions; none if those are the ranks.
    pub positions: Option<&'a [u32]>,
    pub scales: &'a [[u8; 4]],
}

impl Place<'_> {
    /// That of `len` values from the one at `at` on.
    pub(super) fn part(self, at: usize, len: usize) -> Self {
        let positions = self.positions.map(|positions| &positions[at..at + len]);
        Self { first: self.first + at, drawn: self.drawn + at, positions, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(
        g: Grouping,
        first: usize,
        len: usize,
        at: Option<&[u32]>,
    ) -> Vec<(usize, Range<usize>)> {
        let mut runs = Vec::new();
        g.for_each_run(first, len, at, |group, range| runs.push((group, range)));
        runs
    }

    #[test]
    fn runs_follow_ranks_or_positions() {
        assert_eq!(runs(Grouping::Whole, 7, 5, None), [(0, 0..5)]);
        assert_eq!(
            runs(Grouping::Ranks(4), 3, 6, Some(&[0; 6])),
            [(0, 0..1), (1, 1..5), (2, 5..6)]
        );
        assert_eq!(runs(Grouping::Positions(4), 3, 6, None), [(0, 0..1), (1, 1..5), (2, 5..6)]);
        let positions = [3, 4, 7, 8, 40];
        let expected = [(0, 0..1), (1, 1..3), (2, 3..4), (10, 4..5)];
        assert_eq!(runs(Grouping::Positions(4), 9, 5, Some(&positions)), expected);
        assert_eq!(runs(Grouping::Ranks(4), 0, 0, None), []);
    }

    #[test]
    fn groups_are_counted_with_the_last_one_short() {
        assert_eq!(Grouping::None.number(10, 5), 0);
        assert_eq!(Grouping::Whole.number(10, 5), 1);
        assert_eq!(Grouping::Ranks(4).number(10, 5), 2);
        assert_eq!(Grouping::Positions(4).number(10, 5), 3);
        assert_eq!(Grouping::Positions(u32::MAX).number(u64::from(u32::MAX), 1), 1);
    }
}
