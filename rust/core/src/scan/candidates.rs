//! The entries that are still in the running, in the order of their positions.

use crate::buffer::Buffer;
use crate::simd::above::SLACK;
use crate::simd::{BLOCK, Kernels};
use crate::{Error, Result};

/// Positions and values, ascending by position.
///
/// Where there is no memory for more, that is remembered, and nothing more is taken in: whoever
/// selects goes on with what is here, and the encode ends with [`Candidates::check_memory`] before
/// anything depends on it.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    // Of pages that are not touched before they are written: a thread's room is for all that its share can
    // hold, of which it fills a few per cent.
    indices: Buffer<u32>,
    values: Buffer<f32>,
    len: usize,
    failure: Option<Error>,
}

impl Candidates {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Remembers that something could not be allocated.
    pub fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.len = 0;
    }

    /// Remembers it if so; whether all is well.
    pub fn admit_memory(&mut self, allocated: Result<()>) -> bool {
        allocated.map_err(|error| self.fail(error)).is_ok()
    }

    /// An error if memory was missing since [`Candidates::forgive`].
    pub fn check_memory(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Begins anew: memory may be there again.
    pub fn forgive(&mut self) {
        self.failure = None;
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        size_of::<u32>() * (self.indices.len() + self.values.len())
    }

    pub fn indices(&self) -> &[u32] {
        &self.indices.as_slice()[..self.len]
    }

    /// The positions, to be renamed.
    pub fn indices_mut(&mut self) -> &mut [u32] {
        &mut self.indices.as_mut_slice()[..self.len]
    }

    pub fn values(&self) -> &[f32] {
        &self.values.as_slice()[..self.len]
    }

    /// An error if a value is not finite, which only those that no scan has seen can be.
    pub fn check(&self) -> Result<()> {
        let bad = || self.indices().iter().zip(self.values()).filter(|(_, v)| !v.is_finite());
        match bad().next() {
            None => Ok(()),
            Some((&first, _)) => {
                Err(Error::NonFinite { count: bad().count() as u64, first: u64::from(first) })
            }
        }
    }

    /// Forgets the entries and makes room for as many as a scan of `len` elements that keeps `cap` at
    /// most can find, so that no later step finds more than there is room for. Where the cap bounds
    /// nothing, room grows with what is found. Pages are not touched before they are written.
    pub fn restart(&mut self, cap: usize, len: usize) {
        self.len = 0;
        if cap == usize::MAX {
            return;
        }
        // The block that goes beyond the cap is still written, and the next one is given room too.
        let capacity = cap.min(len) + 2 * BLOCK + SLACK;
        if self.indices.len() < capacity {
            // Caps that follow what was seen change a little from step to step.
            let capacity = capacity.next_power_of_two();
            // Both are let go of first: the old and the new need not be there together.
            (self.indices, self.values) = Default::default();
            let grown = self.grow(capacity);
            self.admit_memory(grown);
        }
    }

    /// Makes room for `more` entries and the slack of the kernel; whether there is.
    pub fn reserve(&mut self, more: usize) -> bool {
        let capacity = self.len + more + SLACK;
        if self.indices.len().min(self.values.len()) < capacity {
            let capacity = capacity.next_power_of_two();
            let grown = self.grow(capacity);
            return self.failure.is_none() && self.admit_memory(grown);
        }
        self.failure.is_none()
    }

    /// Makes the room that of so many entries, with those that are here.
    fn grow(&mut self, capacity: usize) -> Result<()> {
        let (mut indices, mut values) = (Buffer::zeros(capacity)?, Buffer::zeros(capacity)?);
        indices.as_mut_slice()[..self.len].copy_from_slice(self.indices());
        values.as_mut_slice()[..self.len].copy_from_slice(self.values());
        (self.indices, self.values) = (indices, values);
        Ok(())
    }

    /// Room for the candidates of a block of `len` elements behind those that are here.
    pub fn spare(&mut self, len: usize) -> Option<(&mut [u32], &mut [f32])> {
        let start = self.len;
        let room = self.reserve(len);
        let (indices, values) = (self.indices.as_mut_slice(), self.values.as_mut_slice());
        room.then(|| (&mut indices[start..], &mut values[start..]))
    }

    /// Takes in `count` entries that were written to the front of the room.
    pub fn admit(&mut self, count: usize) {
        self.len += count;
    }

    /// Adds one entry, which comes after all that are here.
    pub fn push(&mut self, index: u32, value: f32) {
        if self.reserve(1) {
            self.indices.as_mut_slice()[self.len] = index;
            self.values.as_mut_slice()[self.len] = value;
            self.len += 1;
        }
    }

    /// Takes these ascending positions in place of what is here; their values, to be written.
    pub fn replace(&mut self, positions: &[u32]) -> &mut [f32] {
        self.len = 0;
        if !self.reserve(positions.len()) {
            return &mut [];
        }
        self.len = positions.len();
        self.indices_mut().copy_from_slice(positions);
        &mut self.values.as_mut_slice()[..self.len]
    }

    /// Adds entries that come after all that are here.
    pub fn append(&mut self, later: &Self) {
        let whole = self.admit_memory(later.check_memory());
        if !(whole && self.reserve(later.len)) {
            return;
        }
        let end = self.len + later.len;
        self.indices.as_mut_slice()[self.len..end].copy_from_slice(later.indices());
        self.values.as_mut_slice()[self.len..end].copy_from_slice(later.values());
        self.len = end;
    }

    fn entries_mut(&mut self) -> (&mut [u32], &mut [f32]) {
        (&mut self.indices.as_mut_slice()[..self.len], &mut self.values.as_mut_slice()[..self.len])
    }

    /// Keeps the entries whose magnitude is above a bound.
    pub fn keep_above(&mut self, kernels: &Kernels, bound: f32) {
        let (indices, values) = self.entries_mut();
        self.len = kernels.refine(indices, values, bound);
    }

    /// Keeps the entries that are not between two bounds.
    pub fn keep_outside(&mut self, low: f32, high: f32) {
        let mut kept = 0;
        let (indices, values) = self.entries_mut();
        for i in 0..values.len() {
            let (index, value) = (indices[i], values[i]);
            (indices[kept], values[kept]) = (index, value);
            kept += usize::from(value >= high || value <= low);
        }
        self.len = kept;
    }

    /// Keeps the entries whose magnitude is above a bound, and of those that equal it the first
    /// `ties`.
    pub fn keep_from(&mut self, kernels: &Kernels, bound: f32, ties: u64) {
        let end = after_ties(self.values(), bound, ties);
        let (indices, values) = self.entries_mut();
        let (early_indices, late_indices) = indices.split_at_mut(end);
        let (early_values, late_values) = values.split_at_mut(end);
        let front = match bound.to_bits().checked_sub(1) {
            Some(below) => kernels.refine(early_indices, early_values, f32::from_bits(below)),
            None => end,
        };
        let back = kernels.refine(late_indices, late_values, bound);
        indices.copy_within(end..end + back, front);
        values.copy_within(end..end + back, front);
        self.len = front + back;
    }
}

/// How many of the values come before the one that follows the last of so many ties, all of them if
/// there are fewer.
fn after_ties(values: &[f32], magnitude: f32, mut ties: u64) -> usize {
    if ties == 0 {
        return 0;
    }
    let is_tie = |value: &f32| value.abs() == magnitude;
    for (i, block) in values.chunks(BLOCK).enumerate() {
        // Counted first, which vectorises; hardly a block has one.
        let here = block.iter().map(|value| u32::from(is_tie(value))).sum::<u32>();
        if u64::from(here) >= ties {
            let places = block.iter().enumerate().filter(|(_, value)| is_tie(value));
            let last = places.map(|(at, _)| at).nth(ties as usize - 1).unwrap_or(block.len() - 1);
            return i * BLOCK + last + 1;
        }
        ties -= u64::from(here);
    }
    values.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::available_levels;

    #[test]
    fn keeps_the_first_of_the_ties() {
        let magnitudes = [2.0, 1.0, 0.5, 1.0, -1.0, 3.0, 0.0, -1.0, 2.0];
        for level in available_levels() {
            let kernels = Kernels::of(level).unwrap();
            for (bound, most) in [(1.0_f32, 4), (0.0, 1), (3.0, 1)] {
                for ties in 0..=most {
                    let mut candidates = Candidates::default();
                    let many = || (0..3000).map(|i| magnitudes[i % magnitudes.len()]);
                    let ties = ties * 300;
                    many().enumerate().for_each(|(i, v)| candidates.push(i as u32, v));
                    candidates.keep_from(kernels, bound, ties);
                    let mut left = ties;
                    let expected: Vec<u32> = (0..)
                        .zip(many())
                        .filter(|(_, v): &(u32, f32)| {
                            let tie = v.abs() == bound && left > 0;
                            left -= u64::from(tie);
                            v.abs() > bound || tie
                        })
                        .map(|(i, _)| i)
                        .collect();
                    assert_eq!(candidates.indices(), expected);
                }
            }
        }
    }
}
