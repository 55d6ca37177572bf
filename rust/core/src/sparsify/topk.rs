//! Exact top-k in one read of the tensor.
//!
//! The read that adds the gradient to the residual also compacts the entries above a *tracked
//! bound*, somewhat below the last step's k-th magnitude. If at least k survive, the k largest
//! candidates are the k largest entries, whatever the bound was: a bad bound costs time, but never
//! changes the result.

use super::largest::{self, Kept};
use super::{Amount, Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::Result;
use crate::part::{Options, Part};
use crate::scan::Request;

/// Exactly the entries of largest magnitude; ties go to the lower position.
///
/// Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    /// How many entries.
    pub amount: Amount,
}

impl Part for TopK {
    const KIND: &'static str = "topk";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { amount: Amount::read(options)? })
    }

    fn check(self) -> Result<()> {
        self.amount.check()
    }

    fn sized_as(self, other: Self) -> Self {
        other
    }

    fn examples() -> Vec<Self> {
        let ratios = [1e-4, 0.01, 0.3, 1.0].map(Amount::Ratio);
        let counts = [1, 5, 1 << 40].map(Amount::Count);
        ratios.into_iter().chain(counts).map(|amount| Self { amount }).collect()
    }
}

impl Sparsify for TopK {
    fn facts(self) -> Facts {
        Facts::SELECTED
    }

    fn max_count(self, numel: usize) -> u64 {
        self.amount.of(numel)
    }

    fn asks_for_all(self, numel: usize) -> bool {
        self.amount.of(numel) == numel as u64
    }

    fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        request(self.amount.of(unread.numel()), unread).into()
    }

    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        select(self.amount.of(scanned.numel()), tracker, scanned)
    }
}

pub(super) fn request(k: u64, unread: &mut Unread<'_>) -> Request {
    let numel = unread.numel();
    let everything = largest::aim(k, numel) >= numel as f64;
    let bound = match unread.tracker.bound {
        _ if everything => 0.0,
        Some(bound) => bound,
        None => largest::first_bound(k, unread.tensor, unread.scratch),
    };
    Request::above(bound, largest::cap(k, numel))
}

pub(super) fn select(k: u64, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
    let kept = largest::keep(k, scanned);
    track(scanned.scanner.candidates().len() as u64, scanned.numel(), kept, tracker);
    Selected { target: Some(k), threshold: kept.threshold, magnitude: None }
}

/// Sets the bound for the next step, aimed at [`largest::aim`] candidates for `k` entries like those
/// selected now; the factor by which magnitudes are expected to grow.
///
/// Between the bound and the threshold of this step the tail is taken to be exponential: its slope
/// follows from how many entries survived each. The threshold is expected to grow or shrink as it
/// did the last time: residuals swell over the first steps.
pub(super) fn track(k: u64, numel: usize, kept: Kept, tracker: &mut Tracker) -> f32 {
    let Kept { threshold, bound, candidates } = kept;
    let top = f64::from(threshold);
    let guess = if candidates as f64 > 1.1 * k as f64 && bound < threshold {
        let slope = (top - f64::from(bound)) / libm::log(candidates as f64 / k as f64);
        top - slope * libm::log(largest::aim(k, numel) / k as f64)
    } else {
        0.9 * top
    };
    let growth = tracker.threshold.map_or(1.0, |last| (top / f64::from(last)).clamp(0.8, 1.25));
    let next = guess.clamp(0.25 * top, 0.98 * top) * growth;
    // Of a tensor of zeros nothing can be learnt.
    let usable = k > 0 && threshold > 0.0 && (next as f32).is_finite();
    tracker.bound = usable.then_some(next as f32);
    tracker.threshold = usable.then_some(threshold);
    growth as f32
}
