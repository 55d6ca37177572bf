//! Deep Gradient Compression: a threshold from a sample, corrected by what it selects.
//!
//! Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
//! for Distributed Training", ICLR 2018, section 5, with the parameters of the authors' code.
//!
//! The sample is taken from the sums before they are written, so that the read which writes them can
//! also compact the entries above the threshold. A correction works on the compacted entries; the
//! tensor is read once more only if the threshold falls further than expected.
//!
//! Two things differ from that code. It truncates excess entries by position, which starves the end
//! of a tensor; here the largest entries are sent. And a sample with too few non-zeros gives it a
//! threshold of zero, which selects the whole tensor; here the largest entries are then selected
//! exactly.

mod plan;

pub use plan::Plan;

use super::{Amount, Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted, largest, topk};
use crate::part::{Options, Part};
use crate::scan::Request;
use crate::simd::peak::NON_FINITE;
use crate::{Error, Result};

/// A threshold from a sample, and at most `ceil(ratio n)` entries at or above it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledTopK {
    /// The share of entries wanted, in (0, 1].
    pub ratio: f64,
    /// The share of entries looked at, in (0, 1]: more where that would be too few for the ratio.
    pub sample_ratio: f64,
    /// Every so many entries from a random start, or entries drawn with replacement.
    pub strided: bool,
    /// Of too many selected keep the largest at once ("hierarchical" selection), instead of trying
    /// a higher threshold first.
    pub resample: bool,
    /// From so many times the wanted number on, entries are too many.
    pub upper: f64,
    /// Below so many times the wanted number, entries are too few: the threshold is multiplied by
    /// this.
    pub lower: f64,
    /// What the sample depends on, with the tensor and the step.
    pub seed: u64,
}

/// Corrections of the threshold at most.
const ROUNDS: u32 = 10;

/// Where fewer of the sample than this are above the threshold, chance alone will leave too few of
/// the tensor above it now and then: more is compacted, for a lower threshold to be tried at no cost.
const SURE: usize = 100;

impl SampledTopK {
    /// The parameters of the authors' code.
    pub fn new(ratio: f64) -> Self {
        Self {
            ratio,
            sample_ratio: 0.01,
            strided: true,
            resample: true,
            upper: 1.3,
            lower: 0.8,
            seed: 0,
        }
    }

    fn target(self, numel: usize) -> u64 {
        plan::share(self.ratio, numel) as u64
    }

    /// The smallest of the largest magnitudes of the sample.
    fn sampled(self, plan: Plan, unread: &mut Unread<'_>) -> f32 {
        let (numel, tensor, key) = (unread.numel(), unread.tensor, unread.key);
        let scratch = &mut *unread.scratch;
        if plan.samples == 0 {
            return 0.0;
        }
        let magnitude = |i: usize| {
            let bits = tensor.at(i).to_bits() & 0x7fff_ffff;
            // What is not finite is reported by the scan; here it must not hide the rest.
            if bits >= NON_FINITE { 0 } else { bits }
        };
        let below = |limit: usize, bits: u32| ((u64::from(bits) * limit as u64) >> 32) as usize;
        scratch.clear();
        if self.strided || plan.samples == numel {
            let start = below(plan.stride, key.bits(0));
            let samples = (0..plan.samples).map(|j| start + j * plan.stride);
            scratch.extend(samples.map(magnitude));
        } else {
            let draws = (0..plan.samples as u32).map(|j| below(numel, key.bits(j)));
            scratch.extend(draws.map(magnitude));
        }
        let (_, bits, _) = scratch.select_nth_unstable_by(plan.above - 1, |a, b| b.cmp(a));
        f32::from_bits(*bits)
    }

    /// The threshold after the corrections, and how many entries are at or above it.
    fn corrected(self, k: u64, sampled: f32, scanned: &mut Scanned<'_, '_>) -> (f32, u64) {
        let mut threshold = sampled;
        let mut count = count(k, threshold, scanned);
        for _ in 0..ROUNDS {
            threshold *= match count as f64 / k as f64 {
                _ if threshold == 0.0 => break,
                few if few < self.lower => self.lower as f32,
                many if many > self.upper && !self.resample => self.upper as f32,
                _ => break,
            };
            count = self::count(k, threshold, scanned);
        }
        (threshold, count)
    }
}

impl Part for SampledTopK {
    const KIND: &'static str = "sampled_topk";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            ratio: options.get("ratio")?,
            sample_ratio: options.get("sample_ratio")?,
            strided: options.get("strided")?,
            resample: options.get("resample")?,
            upper: options.get("upper")?,
            lower: options.get("lower")?,
            seed: options.get("seed")?,
        })
    }

    fn check(self) -> Result<()> {
        Amount::Ratio(self.ratio).check()?;
        let Self { sample_ratio, upper, lower, .. } = self;
        if !(sample_ratio > 0.0 && sample_ratio <= 1.0) {
            return Err(Error::argument(format!(
                "sample_ratio must be in (0, 1], got {sample_ratio}"
            )));
        }
        if !(upper > 1.0 && upper.is_finite() && lower > 0.0 && lower < 1.0) {
            return Err(Error::argument(format!(
                "bounds must be 0 < lower < 1 < upper, got lower {lower} and upper {upper}"
            )));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { ratio: other.ratio, ..self }
    }

    fn examples() -> Vec<Self> {
        let sampled = Self::new(0.01);
        let other = [
            Self { ratio: 0.3, ..sampled },
            Self { strided: false, seed: 5, ..sampled },
            Self { resample: false, ..sampled },
            Self { sample_ratio: 0.1, upper: 2.0, lower: 0.5, ..sampled },
        ];
        [1e-3, 0.1, 1.0].map(Self::new).into_iter().chain(other).collect()
    }
}

impl Sparsify for SampledTopK {
    fn facts(self) -> Facts {
        Facts { seed: Some(self.seed), ..Facts::SELECTED }
    }

    fn max_count(self, numel: usize) -> u64 {
        self.target(numel)
    }

    fn asks_for_all(self, numel: usize) -> bool {
        self.target(numel) == numel as u64
    }

    fn scratch(self, numel: usize) -> usize {
        Plan::new(self.ratio, self.sample_ratio, numel).samples
    }

    fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        let numel = unread.numel();
        let plan = Plan::new(self.ratio, self.sample_ratio, numel);
        let threshold = self.sampled(plan, unread);
        let k = self.target(numel);
        let bound = if threshold == 0.0 {
            let Unread { tensor, tracker, scratch, .. } = unread;
            tracker.bound.unwrap_or_else(|| largest::first_bound(k, *tensor, scratch))
        } else if plan.above < SURE && plan.samples < numel {
            (self.lower as f32 * threshold).next_down().max(0.0)
        } else {
            threshold.next_down()
        };
        let request = Request::above(bound, largest::cap(k, numel));
        Wanted { request, thresholds: Some((threshold, threshold)) }
    }

    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let numel = scanned.numel();
        let k = self.target(numel);
        let sampled = scanned.thresholds.map_or(0.0, |(threshold, _)| threshold);
        let (threshold, count) = self.corrected(k, sampled, scanned);
        let target = Some(k);
        if threshold > 0.0 && count <= k {
            let kernels = scanned.scanner.kernels;
            scanned.scanner.candidates_mut().keep_above(kernels, threshold.next_down());
            return Selected { target, threshold, magnitude: None };
        }
        // With k at or above the threshold, the largest of them are the largest of all.
        let kept = largest::keep(k, scanned);
        topk::track(k, numel, kept, tracker);
        Selected { target, threshold: kept.threshold, magnitude: None }
    }
}

/// How many magnitudes are at or above the threshold and not zero; where they are far too many, the
/// whole tensor.
fn count(k: u64, threshold: f32, scanned: &mut Scanned<'_, '_>) -> u64 {
    let below = threshold.next_down().max(0.0);
    if !scanned.covers(below) && !scanned.compact(below, largest::cap(k, scanned.numel())) {
        return scanned.numel() as u64;
    }
    scanned.count_above(below)
}
