//! A threshold from a normal distribution fitted to the values.
//!
//! Shi, Chu, Cheung and See, "Understanding Top-k Sparsification in Distributed Deep Learning",
//! arXiv 1911.08772, 2019, section 3.3 (Gaussian-k). Mean and standard deviation are those of the
//! signed values. The threshold `mean + z * deviation` is one that the wanted fraction of magnitudes
//! should exceed; if the number found is far off, the threshold is halved or raised by a half.
//!
//! The corrections follow `GaussianCompressor` in the authors' code (hclhkbu/GaussianK-SGD,
//! `compression.py`). Its loop counts three times and corrects after each count, but sends what the
//! last count found: the third correction is computed and never used. Two take effect.
//!
//! If nothing is selected from a non-zero tensor after the corrections, exactly the wanted number is
//! selected: a tensor whose entries are all equal would otherwise never be sent.

use super::largest::{self, Kept};
use super::{Amount, Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted, amount, topk};
use crate::Result;
use crate::fit::{Moments, normal};
use crate::part::{Options, Part};
use crate::scan::Request;

/// A threshold from a normal distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussian {
    /// The share of entries aimed at, in (0, 1].
    pub ratio: f64,
    /// How often the threshold may be corrected.
    pub rounds: u32,
    /// Bounds of achieved/wanted entries: outside them the exact number is selected instead. None
    /// takes what the last threshold gives, as published.
    pub band: Option<(f64, f64)>,
}

/// Outside these bounds of achieved/wanted entries the threshold is corrected.
const TOO_FEW: f64 = 2.0 / 3.0;
const TOO_MANY: f64 = 4.0 / 3.0;

impl Gaussian {
    /// As the authors' code does it: two corrections that take effect, no band.
    pub fn new(ratio: f64) -> Self {
        Self { ratio, rounds: 2, band: None }
    }

    fn target(self, numel: usize) -> u64 {
        Amount::Ratio(self.ratio).of(numel)
    }

    /// The threshold that the share wanted exceeds, of the normal distribution with the values' moments.
    fn fitted(self, moments: &Moments, numel: usize) -> f32 {
        let n = numel as f64;
        let mean = moments.signed / n;
        let variance = (moments.sum_sq - n * mean * mean) / (n - 1.0).max(1.0);
        let share = self.target(numel) as f64 / n;
        let threshold = mean + libm::sqrt(variance.max(0.0)) * normal::two_sided(share);
        // Of an empty tensor there is nothing to fit, and no magnitude is below zero.
        (threshold.max(0.0) as f32).min(f32::MAX)
    }
}

impl Part for Gaussian {
    const KIND: &'static str = "gaussian";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            ratio: options.get("ratio")?,
            rounds: options.get("rounds")?,
            band: amount::read_band(options)?,
        })
    }

    fn check(self) -> Result<()> {
        Amount::Ratio(self.ratio).check()?;
        amount::check_band(self.band)
    }

    fn sized_as(self, other: Self) -> Self {
        Self { ratio: other.ratio, ..self }
    }

    fn examples() -> Vec<Self> {
        let banded = Self { band: Some((0.8, 1.25)), ..Self::new(0.05) };
        let ratios = [1e-3, 0.1, 1.0].map(Self::new);
        ratios.into_iter().chain([banded, Self { rounds: 0, ..banded }]).collect()
    }
}

impl Sparsify for Gaussian {
    fn facts(self) -> Facts {
        Facts::SELECTED
    }

    fn max_count(self, numel: usize) -> u64 {
        let most = |high: f64| ((self.target(numel) as f64 * high) as u64).min(numel as u64);
        self.band.map_or(numel as u64, |(_, high)| most(high))
    }

    fn asks_for_all(self, numel: usize) -> bool {
        self.target(numel) == numel as u64
    }

    fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        let (k, numel) = (self.target(unread.numel()), unread.numel());
        let bound = topk::request(k, unread).bound().unwrap_or(0.0);
        let above = Request::above(bound, cap(k, numel));
        Request { location: Some(0.0), signed: true, ..above }.into()
    }

    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let numel = scanned.numel();
        let k = self.target(numel);
        let mut threshold = self.fitted(&scanned.totals.moments, numel);
        let mut lowest = f32::INFINITY;
        let mut count = count(k, threshold, scanned);
        for _ in 0..self.rounds {
            lowest = lowest.min(coverable(threshold, count, k, scanned));
            threshold *= match count as f64 / k as f64 {
                few if few < TOO_FEW => 0.5,
                many if many > TOO_MANY => 1.5,
                _ => break,
            };
            count = self::count(k, threshold, scanned);
        }
        if self.band.is_some() && !scanned.covers(threshold) {
            let fits = scanned.compact(threshold, self.max_count(numel) as usize);
            count = if fits { scanned.count_above(threshold) } else { numel as u64 };
        }
        lowest = lowest.min(coverable(threshold, count, k, scanned));
        let achieved = count as f64 / k as f64;
        let inside = self.band.is_none_or(|(low, _)| achieved >= low);
        let kept = if count > 0 && inside && count <= self.max_count(numel) {
            keep(threshold, scanned)
        } else {
            largest::keep(k, scanned)
        };
        topk::track(scanned.scanner.candidates().len() as u64, numel, kept, tracker);
        // The next step will try nearly the same thresholds: what covers the lowest is enough.
        if tracker.bound.is_some() && lowest < f32::INFINITY {
            tracker.bound = Some(0.95 * lowest);
        }
        Selected { target: Some(k), threshold: kept.threshold, magnitude: None }
    }
}

/// How many candidates to keep at most: heavy tails end with three times `k` and more.
fn cap(k: u64, numel: usize) -> usize {
    4 * largest::cap(k, numel)
}

/// The threshold, if the candidates of a first read could include all that is above it.
fn coverable(threshold: f32, count: u64, k: u64, scanned: &Scanned<'_, '_>) -> f32 {
    let few = count as usize <= cap(k, scanned.numel()) / 4 * 3;
    if scanned.covers(threshold) && few { threshold } else { f32::INFINITY }
}

/// How many magnitudes are above the threshold; where that is known to be too many, no more than that
/// is found out.
fn count(k: u64, threshold: f32, scanned: &mut Scanned<'_, '_>) -> u64 {
    if scanned.covers(threshold) {
        return scanned.count_above(threshold);
    }
    let known = scanned.scanner.candidates().len() as u64;
    if scanned.totals.complete && known as f64 > TOO_MANY * k as f64 {
        return known;
    }
    if scanned.compact(threshold, cap(k, scanned.numel())) {
        return scanned.count_above(threshold);
    }
    scanned.numel() as u64
}

/// Keeps what is above the threshold, however much that is.
fn keep(threshold: f32, scanned: &mut Scanned<'_, '_>) -> Kept {
    if !scanned.covers(threshold) {
        scanned.compact(threshold, usize::MAX);
    }
    let bound = scanned.request.bound().unwrap_or(0.0);
    let kernels = scanned.scanner.kernels;
    let candidates = scanned.scanner.candidates_mut();
    let kept = Kept { threshold, bound, candidates: candidates.len() };
    candidates.keep_above(kernels, threshold);
    kept
}
