//! Repeats the numbers of each group for each of its entries.
//!
//! Groups may be as short as one entry. A kernel that is called once per group would spend its time on
//! calls, and one with an inner loop on entering that loop. So the factor of a group is first written
//! once for each of its entries; the kernels then run over a block of many groups in one loop.

use super::groups::{Grouping, Place};
use crate::simd::{Kernels, LANES, Pair};

/// Entries of a block at most.
pub(crate) const LONGEST: usize = 512;

/// Groups whose numbers are found at a time.
const MANY: usize = 32;

/// Two numbers for each entry of a block, to be used again for all blocks of a frame.
#[derive(Debug)]
pub(super) struct Spread {
    tables: [[f32; LONGEST + LANES]; 2],
    /// A group and as many entries from the first on as both tables have its numbers for.
    held: Option<(usize, usize)>,
    /// Whether the second table has nothing but ones, as it mostly does.
    plain: bool,
}

impl Default for Spread {
    fn default() -> Self {
        let tables = [[0.0; LONGEST + LANES], [1.0; LONGEST + LANES]];
        Self { tables, held: None, plain: true }
    }
}

impl Spread {
    /// The numbers of the `len` entries of a block; a group has `each` scales. `numbers` finds two of
    /// each group from its scales, as a frame has them. It must be the same in all calls, and so must
    /// the scales.
    pub fn over(
        &mut self,
        kernels: &Kernels,
        (grouping, each): (Grouping, usize),
        place: Place<'_>,
        len: usize,
        numbers: impl Fn(&[[u8; 4]], &mut [f32], &mut [f32]),
    ) -> Pair<'_> {
        let Place { first, positions, .. } = place;
        match (grouping, positions) {
            (Grouping::Ranks(size), _) | (Grouping::Positions(size), None) => {
                let size = size as usize;
                let (group, skip) = (first / size, first % size);
                if skip + len <= size {
                    self.one(each, place, group, 0..len, len, &numbers);
                } else {
                    self.equal(kernels, each, place, (group, skip, size), len, &numbers);
                }
            }
            (grouping, _) => grouping.for_each_run(first, len, positions, |group, range| {
                self.one(each, place, group, range, len, &numbers);
            }),
        }
        let [first, second] = &self.tables;
        [&first[..len], &second[..len]]
    }

    /// The numbers of groups of `size` entries, the first of which began `skip` entries before.
    fn equal(
        &mut self,
        kernels: &Kernels,
        each: usize,
        place: Place<'_>,
        (mut group, mut skip, size): (usize, usize, usize),
        len: usize,
        numbers: &impl Fn(&[[u8; 4]], &mut [f32], &mut [f32]),
    ) {
        self.held = None;
        let mut at = 0;
        while at < len {
            let groups = (len - at + skip).div_ceil(size).min(MANY);
            let (mut one, mut other) = ([0.0; MANY], [1.0; MANY]);
            let (one, other) = (&mut one[..groups], &mut other[..groups]);
            numbers(scales(place, each, group, groups), one, other);
            kernels.spread(one, size, skip, &mut self.tables[0][at..]);
            self.plain &= other.iter().all(|&number| number == 1.0);
            if !self.plain {
                kernels.spread(other, size, skip, &mut self.tables[1][at..]);
            }
            at += groups * size - skip;
            (group, skip) = (group + groups, 0);
        }
    }

    /// The numbers of one group, some of the `len` entries of a block.
    fn one(
        &mut self,
        each: usize,
        place: Place<'_>,
        group: usize,
        range: std::ops::Range<usize>,
        len: usize,
        numbers: &impl Fn(&[[u8; 4]], &mut [f32], &mut [f32]),
    ) {
        let is_whole = range.len() == len;
        if is_whole && self.held.is_some_and(|(held, most)| held == group && len <= most) {
            return;
        }
        self.held = is_whole.then_some((group, len));
        let (mut one, mut other) = ([0.0], [1.0]);
        numbers(scales(place, each, group, 1), &mut one, &mut other);
        self.tables[0][range.clone()].fill(one[0]);
        self.plain &= other == [1.0];
        if !self.plain {
            self.tables[1][range].fill(other[0]);
        }
    }
}

/// The scales of some groups, `each` for one. A section has those of every group; whatever a frame
/// says, no reader panics here.
fn scales(place: Place<'_>, each: usize, group: usize, groups: usize) -> &[[u8; 4]] {
    place.scales.get(group * each..(group + groups) * each).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::available_levels;

    /// One number that tells all groups apart, and one that is one for most.
    fn numbers(scales: &[[u8; 4]], one: &mut [f32], other: &mut [f32]) {
        for ((one, other), scale) in one.iter_mut().zip(other).zip(scales) {
            [*one, *other] = number(f32::from_le_bytes(*scale));
        }
    }

    fn number(scale: f32) -> [f32; 2] {
        [scale, if scale % 40.0 == 39.0 { 7.0 } else { 1.0 }]
    }

    #[test]
    fn every_entry_has_the_numbers_of_its_group() {
        let kernels = available_levels().into_iter().filter_map(Kernels::of);
        let blocks = (1..=70).chain([511, 512, 513, 2000]);
        for (kernels, block) in kernels.flat_map(|k| blocks.clone().map(move |block| (k, block))) {
            let groups = (Grouping::Ranks(block), 1);
            let scales: Vec<_> = (0..=4000 / block).map(|g| (g as f32).to_le_bytes()).collect();
            let mut spread = Spread::default();
            for (first, len) in
                [(0, 512), (512, 512), (1024, 100), (1124, 1), (1125, 300), (3, 512)]
            {
                let place = Place { first, drawn: 0, positions: None, scales: &scales };
                let [one, other] = spread.over(kernels, groups, place, len, numbers);
                for (i, (&one, &other)) in one.iter().zip(other).enumerate() {
                    let group = (first + i) / block as usize;
                    assert_eq!([one, other], number(group as f32), "{block}: {first} + {i}");
                }
            }
        }
    }
}
