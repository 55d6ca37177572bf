//! RedSync: thresholds between the mean and the largest magnitude.
//!
//! Fang, Fu, Yang and Hsieh, "RedSync: Reducing Synchronization Bandwidth for Distributed Deep
//! Learning Training System", JPDC 2019, section 5.1 (algorithms 2 and 3). Thresholds have the form
//! `mean + r (max - mean)`. Trimming lowers `r` step by step until enough entries are above, and
//! then selects exactly the wanted number of them. The search bisects `r` until the number above is
//! acceptable, which avoids that selection; on heavy tails it hardly ever succeeds, and the exact
//! selection decides.
//!
//! Both need mean and maximum first, which takes a separate read. Here the read that gathers them
//! also compacts the entries above a bound tracked from the last step, so a steady step needs only
//! one read. The bound never changes what is selected.

use super::largest::{self, Kept};
use super::{Amount, Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted, topk};
use crate::part::{Options, Part};
use crate::scan::Request;
use crate::{Error, Result};

/// RedSync's selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trimmed {
    /// The share of entries wanted, in (0, 1].
    pub ratio: f64,
    /// How the threshold is found.
    pub method: Method,
    /// The step by which trimming lowers `r`, and the interval at which the search ends; in (0, 1).
    pub step: f64,
}

/// How RedSync finds its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Trim, then select exactly: the `k` largest.
    Trim,
    /// Binary search for a threshold with `k` to `2 k` entries above. Where it ends without one, the
    /// `k` largest.
    Search,
}

impl Trimmed {
    /// Trimming in steps of 0.2, as published.
    pub fn new(ratio: f64) -> Self {
        Self { ratio, method: Method::Trim, step: 0.2 }
    }

    fn target(self, numel: usize) -> u64 {
        Amount::Ratio(self.ratio).of(numel)
    }

    /// The threshold at a share `r` of the way from the mean magnitude to the largest.
    fn threshold(r: f64, scanned: &Scanned<'_, '_>) -> f32 {
        let mean = scanned.totals.moments.sum / scanned.numel() as f64;
        let most = f64::from(f32::from_bits(scanned.totals.peak));
        (mean + r * (most - mean)) as f32
    }

    /// Trims the candidates for the exact selection, as long as they are all that is above.
    fn trim(self, k: u64, scanned: &mut Scanned<'_, '_>) -> Option<Kept> {
        let mut r = 1.0 - self.step;
        while r > 0.0 {
            let threshold = Self::threshold(r, scanned);
            if !scanned.covers(threshold) {
                break;
            }
            if scanned.count_above(threshold) >= k {
                keep(threshold, scanned);
                break;
            }
            r -= self.step;
        }
        None
    }

    /// Halves the interval until a threshold has `k` to `2 k` entries above it.
    fn search(self, k: u64, scanned: &mut Scanned<'_, '_>) -> Option<Kept> {
        let most = self.max_count(scanned.numel());
        let (mut low, mut high) = (0.0, 1.0);
        while high - low > self.step {
            let r = f64::midpoint(low, high);
            let threshold = Self::threshold(r, scanned);
            let many = scanned.totals.complete && scanned.scanner.candidates().len() as u64 > most;
            let covered = scanned.covers(threshold)
                || !many && scanned.compact(threshold, largest::cap(most, scanned.numel()));
            // What is not covered is more than was compacted, which is too many.
            match covered.then(|| scanned.count_above(threshold)) {
                Some(count) if count < k => high = r,
                Some(count) if count <= most => return Some(keep(threshold, scanned)),
                _ => low = r,
            }
        }
        None
    }
}

impl Part for Trimmed {
    const KIND: &'static str = "trimmed";

    fn read(options: &Options) -> Result<Self> {
        let methods = [("trim", Method::Trim), ("search", Method::Search)];
        Ok(Self {
            ratio: options.get("ratio")?,
            method: options.choose("method", &methods)?,
            step: options.get("step")?,
        })
    }

    fn check(self) -> Result<()> {
        Amount::Ratio(self.ratio).check()?;
        let step = self.step;
        if !(step > 0.0 && step < 1.0) {
            return Err(Error::argument(format!("step must be in (0, 1), got {step}")));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { ratio: other.ratio, ..self }
    }

    fn examples() -> Vec<Self> {
        let trimmed = [1e-3, 0.1, 1.0].map(Self::new);
        let searched = trimmed.map(|trimmed| Self { method: Method::Search, ..trimmed });
        let fine = Self { step: 0.05, ..Self::new(0.01) };
        trimmed.into_iter().chain(searched).chain([fine]).collect()
    }
}

impl Sparsify for Trimmed {
    fn facts(self) -> Facts {
        Facts::SELECTED
    }

    fn max_count(self, numel: usize) -> u64 {
        let most = match self.method {
            Method::Trim => 1,
            Method::Search => 2,
        };
        (most * self.target(numel)).min(numel as u64)
    }

    fn asks_for_all(self, numel: usize) -> bool {
        self.target(numel) == numel as u64
    }

    fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        // All that may be selected is compacted: with more candidates than that, a threshold below
        // the bound is known to select too many.
        let top = topk::request(self.max_count(unread.numel()), unread);
        Request { location: Some(0.0), ..top }.into()
    }

    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let numel = scanned.numel();
        let k = self.target(numel);
        let found = match self.method {
            _ if scanned.totals.peak == 0 => None,
            Method::Trim => self.trim(k, scanned),
            Method::Search => self.search(k, scanned),
        };
        let kept = found.unwrap_or_else(|| largest::keep(k, scanned));
        topk::track(scanned.scanner.candidates().len() as u64, numel, kept, tracker);
        Selected { target: Some(k), threshold: kept.threshold, magnitude: None }
    }
}

/// Keeps the candidates above a threshold that is covered.
fn keep(threshold: f32, scanned: &mut Scanned<'_, '_>) -> Kept {
    let kernels = scanned.scanner.kernels;
    let bound = scanned.request.bound().unwrap_or(0.0);
    let candidates = scanned.scanner.candidates_mut();
    let kept = Kept { threshold, bound, candidates: candidates.len() };
    candidates.keep_above(kernels, threshold);
    scanned.request = Request::above(threshold.max(bound), usize::MAX);
    kept
}
