//! Sums over the values of a group, from which its scales follow.

use crate::scan::CHUNK;
use crate::simd::summary::Lanes;
use crate::simd::{Kernels, reduce};

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
        let (kernels, mut summary) = (Kernels::current(), Self::default());
        for chunk in values.chunks(CHUNK) {
            let mut lanes = Lanes::default();
            (kernels.summary)(chunk, &mut lanes);
            summary.add(&lanes.into());
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

impl From<Lanes> for Summary {
    fn from(lanes: Lanes) -> Self {
        Self {
            count: lanes.count,
            negatives: lanes.negatives,
            above: reduce(&lanes.above),
            below: reduce(&lanes.below),
            squares: reduce(&lanes.squares),
            peak: lanes.peak,
        }
    }
}
