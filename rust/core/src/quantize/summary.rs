//! Sums over the values of a group, from which its scales follow.

use crate::scan::CHUNK;
use crate::simd::{LANES, reduce};

/// What is known of the values of a group.
///
/// Sums are float64, over [`CHUNK`] values each in sixteen lanes, chunk by chunk: the same whoever
/// adds them up. A square of a float32 is exact in float64 and cannot overflow it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Summary {
    /// Values.
    pub count: u64,
    /// Values below zero.
    pub negatives: u64,
    /// The sum of the values that are not below zero.
    pub above: f64,
    /// The sum of the values below zero.
    pub below: f64,
    /// The sum of squares.
    pub squares: f64,
    /// Bits of the largest magnitude.
    pub peak: u32,
}

impl Summary {
    /// Of values of which nothing is known but the bits of the largest magnitude.
    pub fn of_peak(peak: u32) -> Self {
        Self { peak, ..Self::default() }
    }

    /// Of all these values.
    pub fn of(values: &[f32]) -> Self {
        let mut summary = Self::default();
        for chunk in values.chunks(CHUNK) {
            let mut lanes = Lanes::default();
            lanes.push(chunk);
            summary.add(&lanes.summary());
        }
        summary
    }

    /// Adds what the next chunk came to.
    pub fn add(&mut self, next: &Self) {
        self.count += next.count;
        self.negatives += next.negatives;
        self.above += next.above;
        self.below += next.below;
        self.squares += next.squares;
        self.peak = self.peak.max(next.peak);
    }

    /// The largest magnitude.
    pub fn peak(&self) -> f32 {
        f32::from_bits(self.peak)
    }

    /// The mean of magnitudes; zero of no values.
    pub fn mean_magnitude(&self) -> f64 {
        (self.above - self.below) / self.count.max(1) as f64
    }

    /// The mean of squares; zero of no values.
    pub fn mean_square(&self) -> f64 {
        self.squares / self.count.max(1) as f64
    }
}

/// The sums of a chunk under way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lanes {
    above: [f64; LANES],
    below: [f64; LANES],
    squares: [f64; LANES],
    count: u64,
    negatives: u64,
    peak: u32,
}

impl Lanes {
    /// Adds values; all pushed before were whole groups of sixteen.
    pub fn push(&mut self, values: &[f32]) {
        let mut negatives = [0_u32; LANES];
        let mut peaks = [0_u32; LANES];
        let mut step = |i: usize, x: f32| {
            let wide = f64::from(x);
            let below = x < 0.0;
            self.above[i] += if below { 0.0 } else { wide };
            self.below[i] += if below { wide } else { 0.0 };
            self.squares[i] += wide * wide;
            negatives[i] += u32::from(below);
            peaks[i] = peaks[i].max(x.to_bits() & 0x7FFF_FFFF);
        };
        let (groups, rest) = values.as_chunks::<LANES>();
        for group in groups {
            for (i, &x) in group.iter().enumerate() {
                step(i, x);
            }
        }
        for (i, &x) in rest.iter().enumerate() {
            step(i, x);
        }
        self.count += values.len() as u64;
        self.negatives += negatives.iter().map(|&n| u64::from(n)).sum::<u64>();
        self.peak = peaks.iter().fold(self.peak, |peak, &p| peak.max(p));
    }

    /// What the chunk comes to.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.count,
            negatives: self.negatives,
            above: reduce(&self.above),
            below: reduce(&self.below),
            squares: reduce(&self.squares),
            peak: self.peak,
        }
    }
}
