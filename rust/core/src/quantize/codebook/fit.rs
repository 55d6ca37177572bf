//! Fits a few magnitudes to those of a block, by clustering.
//!
//! Lloyd, "Least Squares Quantization in PCM", IEEE Trans. Inf. Theory 1982 (written 1957): to
//! minimize the squared error, each value is assigned to its nearest magnitude, and each magnitude is
//! the mean of its values. In one dimension clusters are intervals, so sums over them are differences
//! of running sums: an iteration costs next to nothing once magnitudes are counted in cells.

use super::super::{Scales, peak};

/// Cells of a power of two. Where clusters meet is known to one part in so many.
const FINE: u32 = 5;

/// Powers of two below the largest magnitude that have cells; what is below shares the first.
const OCTAVES: u32 = 16;

const CELLS: usize = ((OCTAVES + 1) << FINE) as usize;

/// Most magnitudes that there are places for.
const MOST: usize = 8;

/// Rounds of Lloyd's iteration. Two magnitudes need none: their cut is the best there is.
const ROUNDS: usize = 16;

/// So many magnitudes for these finite values, in ascending order, and the rest zero. Where there are
/// fewer different ones, some are equal.
pub(super) fn fit(values: &[f32], magnitudes: usize) -> Scales {
    let cells = Cells::of(values);
    let mut ends = [cells.len; MOST];
    let ends = &mut ends[..magnitudes];
    cells.divide(ends);
    if magnitudes > 2 {
        for _ in 0..ROUNDS {
            cells.improve(ends);
        }
    }
    cells.means(ends)
}

/// Where a cluster is cut in two, and what that takes off the squared error.
#[derive(Debug, Clone, Copy, Default)]
struct Cut {
    gain: f64,
    at: usize,
}

/// Magnitudes counted in cells: running sums over those that are not empty, ascending.
struct Cells {
    len: usize,
    /// Magnitudes in the cells before.
    count: [f64; CELLS + 1],
    /// Their sum.
    sum: [f64; CELLS + 1],
}

impl Cells {
    fn of(values: &[f32]) -> Self {
        // As a float64 every float32 is normal: subnormals have cells like all others.
        let cell = |x: f32| (f64::from(x.abs()).to_bits() >> (52 - FINE)) as u32;
        let lowest = (cell(peak(values)) + 1).saturating_sub(CELLS as u32);
        let mut counts = [0_u32; CELLS];
        let mut sums = [0.0; CELLS];
        for x in values {
            // Nothing is above the largest, but for what is no number.
            let at = (cell(*x).saturating_sub(lowest) as usize).min(CELLS - 1);
            counts[at] += 1;
            sums[at] += f64::from(x.abs());
        }
        let mut cells = Self { len: 0, count: [0.0; CELLS + 1], sum: [0.0; CELLS + 1] };
        for (&n, &sum) in counts.iter().zip(&sums).filter(|(n, _)| **n > 0) {
            let at = cells.len;
            cells.count[at + 1] = cells.count[at] + f64::from(n);
            cells.sum[at + 1] = cells.sum[at] + sum;
            cells.len += 1;
        }
        cells
    }

    /// Divides the cells into clusters, of which these become the ends: one after the other is cut
    /// where that takes most off the squared error.
    fn divide(&self, ends: &mut [usize]) {
        let mut cuts = [Cut::default(); MOST];
        cuts[0] = self.cut(0, self.len);
        for clusters in 1..ends.len() {
            let gain = |i: &usize| cuts[*i].gain;
            let better = |a: usize, b: usize| if gain(&b) > gain(&a) { b } else { a };
            let widest = (0..clusters).reduce(better).unwrap_or(0);
            let Cut { gain, at } = cuts[widest];
            if gain <= 0.0 {
                return;
            }
            let (start, end) = (if widest == 0 { 0 } else { ends[widest - 1] }, ends[widest]);
            ends.copy_within(widest..clusters, widest + 1);
            cuts.copy_within(widest..clusters, widest + 1);
            ends[widest] = at;
            cuts[widest] = self.cut(start, at);
            cuts[widest + 1] = self.cut(at, end);
        }
    }

    /// The best cut of these cells in two: where the squares of both sums, each over its count, are
    /// most above the square of their sum over all.
    fn cut(&self, start: usize, end: usize) -> Cut {
        let share = |from: usize, to: usize| {
            let (sum, count) = (self.sum[to] - self.sum[from], self.count[to] - self.count[from]);
            sum * sum / count
        };
        let whole = share(start, end);
        let mut best = Cut::default();
        for at in start + 1..end {
            let gain = share(start, at) + share(at, end) - whole;
            if gain > best.gain {
                best = Cut { gain, at };
            }
        }
        best
    }

    /// One round: moves where clusters meet to the middle between their means.
    fn improve(&self, ends: &mut [usize]) {
        let means = self.means(ends);
        for i in 0..ends.len() - 1 {
            let middle = f64::midpoint(f64::from(means[i]), f64::from(means[i + 1]));
            // The mean of a cell says which side it is on.
            let below = |at: usize| {
                let sum = self.sum[at + 1] - self.sum[at];
                sum <= middle * (self.count[at + 1] - self.count[at])
            };
            let (mut low, mut high) = (0, self.len);
            while low < high {
                let at = usize::midpoint(low, high);
                if below(at) { low = at + 1 } else { high = at }
            }
            ends[i] = low;
        }
    }

    /// The mean of each cluster; of an empty one that of the cluster below it.
    fn means(&self, ends: &[usize]) -> Scales {
        let mut means = Scales::default();
        let (mut start, mut last) = (0, 0.0);
        for (mean, &end) in means.iter_mut().zip(ends) {
            let count = self.count[end] - self.count[start];
            if count > 0.0 {
                last = ((self.sum[end] - self.sum[start]) / count) as f32;
            }
            *mean = last;
            start = end;
        }
        means
    }
}
