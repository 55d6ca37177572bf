//! Computes the scales of groups from their values.

use super::{
    Basis, Codebook, Exponent, Float8, Magnitude, Norm, Quantizer, Scales, SignScale, Summary,
    Ternary, TwoMeans, Uniform, exponent, float8, store,
};
use crate::simd::Kernels;

/// Groups that are summed up before their scales are found.
const MANY: usize = 32;

impl Quantizer {
    /// What the scales of a group follow from.
    pub(crate) fn basis(self) -> Basis {
        match self {
            Self::Float8(Float8 { .. })
            | Self::Exponent(Exponent { .. })
            | Self::Uniform(Uniform { norm: Norm::Max, .. })
            | Self::Ternary(Ternary { clip: None, .. }) => Basis::Peak,
            Self::Uniform(Uniform { norm: Norm::L2, .. })
            | Self::SignScale(SignScale { magnitude: Magnitude::RootMeanSquare }) => Basis::Squares,
            Self::TwoMeans(TwoMeans { .. }) | Self::SignScale(SignScale { .. }) => Basis::Sides,
            Self::Codebook(Codebook { .. }) => Basis::Values,
            _ => Basis::Sums,
        }
    }

    /// Fits the scales of each group of `len` values in a row, [`CHUNK`](crate::scan::CHUNK) at most,
    /// the last of which may be shorter, and writes them down, `each` for a group. Gives the bits of
    /// the largest magnitude.
    pub(crate) fn fit_groups(
        self,
        kernels: &Kernels,
        (values, len): (&[f32], usize),
        told: Option<f32>,
        (scales, each): (&mut [[u8; 4]], usize),
    ) -> u32 {
        let summarize = match self.basis() {
            Basis::Peak => return self.fit_peaks(kernels, (values, len), scales),
            Basis::Values => {
                for (values, out) in values.chunks(len).zip(scales.chunks_mut(each)) {
                    store(&self.fit(values, told)[..each], out);
                }
                return kernels.peak(values);
            }
            Basis::Sides => Kernels::group_sides,
            Basis::Squares => Kernels::group_squares,
            Basis::Sums => Kernels::group_summaries,
        };
        let (mut peak, mut summaries) = (0, [Summary::default(); MANY]);
        let spans = values.chunks(MANY * len).zip(scales.chunks_mut(MANY * each));
        for (values, scales) in spans {
            let groups = values.len().div_ceil(len);
            summarize(kernels, values, len, &mut summaries[..groups]);
            for (summary, out) in summaries[..groups].iter().zip(scales.chunks_mut(each)) {
                store(&self.scales(summary, told)[..each], out);
                peak = peak.max(summary.peak);
            }
        }
        peak
    }

    /// As [`Quantizer::fit_groups`], where the one scale of a group follows from its peak.
    fn fit_peaks(
        self,
        kernels: &Kernels,
        (values, len): (&[f32], usize),
        scales: &mut [[u8; 4]],
    ) -> u32 {
        let (mut peak, mut peaks) = (0, [0; MANY]);
        for (values, scales) in values.chunks(MANY * len).zip(scales.chunks_mut(MANY)) {
            kernels.group_peaks(values, len, &mut peaks);
            for (scale, &bits) in scales.iter_mut().zip(&peaks) {
                *scale = self.scale_of_peak(f32::from_bits(bits)).to_le_bytes();
                peak = peak.max(bits);
            }
        }
        peak
    }

    /// The scale of a group of which no more than the largest magnitude is asked.
    #[inline]
    pub(super) fn scale_of_peak(self, peak: f32) -> f32 {
        match self {
            Self::Float8(Float8 { format, .. }) => float8::scale(peak, format),
            Self::Exponent(Exponent { .. }) => exponent::scale(peak),
            _ => peak,
        }
    }

    /// Fits the scales of a group to its values.
    pub(crate) fn fit(self, values: &[f32], told: Option<f32>) -> Scales {
        match self.basis() {
            Basis::Values => self.scales_of(values),
            _ => self.scales(&Summary::of(values), told),
        }
    }
}
