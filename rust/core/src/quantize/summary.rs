//! Sums over the values of a group, from which its scales are computed.
//!
//! Sums are float64, over [`CHUNK`] values each in sixteen lanes, chunk by chunk: the result does not
//! depend on how the work is divided. A square of a float32 is exact in float64 and cannot overflow it.

use crate::scan::CHUNK;
use crate::simd::Kernels;
use crate::simd::summary::Lanes;
pub(crate) use crate::simd::summary::Summary;

impl Summary {
    /// Of all these values.
    pub fn of(kernels: &Kernels, values: &[f32]) -> Self {
        let mut summary = Self::default();
        for chunk in values.chunks(CHUNK) {
            let mut lanes = Lanes::default();
            kernels.summary(chunk, &mut lanes);
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
