//! SIDCo: a threshold from a distribution fitted to the magnitudes, in several stages.
//!
//! Abdelmoniem, Elzanaty, Alouini and Canini, "An Efficient Statistical-based Gradient Compression
//! Technique for Distributed Training Systems", MLSys 2021.
//!
//! The read that adds the gradient to the residual takes the moments of all magnitudes for the
//! first stage, and compacts the entries above a bound that later stages are expected to reach. The
//! second stage reads the tensor once more for the moments of its exceedances; the stages after it
//! work on the survivors alone. A bound that was too high costs another read, never another
//! result: sums over survivors are the same to the last bit as sums over the tensor.

use super::largest::{self, Kept};
use super::{Amount, Scanned, Selected, Tracker, topk};
use crate::fit::{self, Controller, Distribution, Mode, Moments};
use crate::scan::{self, Request, magnitude_above};
use crate::{Error, Result};

/// SIDCo's threshold estimation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sid {
    /// The share of entries aimed at, in (0, 1].
    pub ratio: f64,
    /// The law fitted.
    pub distribution: Distribution,
    /// Who chooses the number of stages.
    pub mode: Mode,
    /// The share of entries that the first of several stages keeps.
    pub first_ratio: f64,
    /// Bounds of achieved/wanted entries: outside them the exact number is selected instead. None
    /// takes what the fit gives, as published.
    pub band: Option<(f64, f64)>,
}

impl Sid {
    /// The default for a ratio: generalized Pareto, our controller, a band of 0.8 to 1.25.
    pub fn new(ratio: f64) -> Self {
        Self {
            ratio,
            distribution: Distribution::GeneralizedPareto,
            mode: Mode::Adaptive,
            first_ratio: 0.25,
            band: Some((0.8, 1.25)),
        }
    }

    pub(super) fn check(self) -> Result<()> {
        Amount::Ratio(self.ratio).check()?;
        if !(self.first_ratio > 0.0 && self.first_ratio < 1.0) {
            let given = self.first_ratio;
            return Err(Error::argument(format!("first_ratio must be in (0, 1), got {given}")));
        }
        if let Some((low, high)) = self.band
            && !(0.0..=1.0).contains(&low) | !(high >= 1.0 && high.is_finite())
        {
            return Err(Error::argument(format!(
                "band must be (low, high) with 0 <= low <= 1 <= high, got ({low}, {high})"
            )));
        }
        if self.mode == Mode::Fixed(0) {
            return Err(Error::argument("stages must be at least 1, got 0"));
        }
        Ok(())
    }

    fn target(self, numel: usize) -> u64 {
        Amount::Ratio(self.ratio).of(numel)
    }

    pub(super) fn max_count(self, numel: usize) -> u64 {
        let most = |high: f64| ((self.target(numel) as f64 * high) as u64).min(numel as u64);
        self.band.map_or(numel as u64, |(_, high)| most(high))
    }

    /// The share of entries really aimed at, which rounding to whole entries changes.
    fn share(self, numel: usize) -> f64 {
        self.target(numel) as f64 / numel.max(1) as f64
    }

    pub(super) fn controller(self, numel: usize) -> Controller {
        Controller::new(self.mode, self.distribution, self.share(numel))
    }

    /// How many entries the stages after the second are expected to need.
    fn expected_survivors(self, numel: usize, tracker: &Tracker) -> f64 {
        let k = self.target(numel);
        let plan = |c: &Controller| c.plan(k, numel as u64, self.first_ratio);
        let second = match tracker.controller.as_ref().map(plan) {
            Some(plan) if plan.stages() >= 3 => 1.5 * plan.expected(numel as u64, 2),
            _ => 0.0,
        };
        let second = second.min(numel as f64 / FEW as f64);
        largest::aim(k, numel).max(second)
    }

    pub(super) fn request(
        self,
        numel: usize,
        tracker: &Tracker,
        at: impl Fn(usize) -> f32,
        scratch: &mut Vec<u32>,
    ) -> Request {
        let wanted = self.expected_survivors(numel, tracker);
        let everything = wanted >= numel as f64;
        let bound = match tracker.bound {
            _ if everything => 0.0,
            Some(bound) => bound,
            None => magnitude_above(numel, wanted, at, scratch),
        };
        let cap = largest::cap(wanted as u64, numel);
        let logs = self.distribution.needs_log();
        Request { moments: true, logs, location: None, bound: Some(bound), cap }
    }

    pub(super) fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let k = self.target(scanned.numel());
        let target = Some(k);
        if scanned.totals.moments.count == 0 {
            scanned.scanner.survivors_mut().clear();
            (tracker.bound, tracker.threshold) = (None, None);
            return Selected { target, threshold: 0.0 };
        }
        let Some(fitted) = self.fit(k, tracker, scanned) else {
            let threshold = largest::keep(k, scanned).threshold;
            (tracker.bound, tracker.threshold) = (None, None);
            return Selected { target, threshold };
        };
        let threshold = self.apply(k, fitted.threshold, tracker, scanned);
        // Stages after the second work on what was above its threshold.
        if let (Some(bound), Some(second)) = (tracker.bound, fitted.second) {
            tracker.bound = Some(bound.min(0.85 * second));
        }
        Selected { target, threshold }
    }

    /// The threshold of the multi-stage fit; none where no law can be fitted.
    fn fit(self, k: u64, tracker: &Tracker, scanned: &mut Scanned<'_, '_>) -> Option<Fitted> {
        let numel = scanned.numel() as u64;
        let controller = tracker.controller.as_ref()?;
        let mut plan = controller.plan(k, numel, self.first_ratio);
        let first = plan.first();
        let moments = &scanned.totals.moments;
        let threshold = fit::first_threshold(self.distribution, moments, numel, first)?;
        let mut fitted = Fitted { threshold: threshold as f32, second: None };
        for stage in 2..=controller.stages() {
            let location = fitted.threshold;
            let tail = exceedances(location, scanned);
            if stage == 3 && tail.count <= numel / FEW {
                fitted.second = Some(location);
            }
            let Some(rho) = plan.next(tail.count) else { break };
            let next = fit::tail_threshold(self.distribution, &tail, f64::from(location), rho);
            match next.map(|next| next as f32) {
                Some(next) if next > location && next.is_finite() => fitted.threshold = next,
                _ => break,
            }
        }
        Some(fitted)
    }

    /// Keeps the entries above the fitted threshold, or the wanted number where that is outside
    /// the band; the threshold that came of it. Tells the controller and the tracker.
    fn apply(
        self,
        k: u64,
        fitted: f32,
        tracker: &mut Tracker,
        scanned: &mut Scanned<'_, '_>,
    ) -> f32 {
        if !scanned.covers(fitted) {
            let cap = match self.band {
                Some(_) => largest::cap(k, scanned.numel()),
                None => usize::MAX,
            };
            scanned.compact(fitted, cap);
        }
        let survivors = scanned.scanner.survivors();
        let above = survivors.values().iter().filter(|v| v.abs() > fitted).count();
        // More than could be kept is far more than wanted.
        let above = if scanned.totals.complete { above as f64 } else { scanned.numel() as f64 };
        let achieved = above / k as f64;
        if let Some(controller) = &mut tracker.controller {
            controller.observe(achieved);
        }
        let most = self.max_count(scanned.numel()) as f64;
        let inside = self.band.is_none_or(|(low, _)| achieved >= low && above <= most);
        let kept = if inside {
            let (bound, survivors) = (scanned.request.bound.unwrap_or(0.0), survivors.len());
            let kernels = scanned.scanner.kernels;
            scanned.scanner.survivors_mut().keep_above(kernels, fitted);
            Kept { threshold: fitted, bound, survivors }
        } else {
            largest::keep(k, scanned)
        };
        let selected = scanned.scanner.survivors().len().max(1) as u64;
        topk::track(selected, scanned.numel(), kept, tracker);
        kept.threshold
    }
}

/// Sweeping over so many entries costs as much as working on one survivor.
const FEW: u64 = 16;

/// What the stages came to.
#[derive(Debug, Clone, Copy)]
struct Fitted {
    threshold: f32,
    /// The threshold of the second stage, if there are more and they work on few survivors.
    second: Option<f32>,
}

/// Moments of the exceedances over a location, from the survivors if they are all there.
fn exceedances(location: f32, scanned: &mut Scanned<'_, '_>) -> Moments {
    let few = scanned.scanner.survivors().len() as u64 <= scanned.numel() as u64 / FEW;
    if scanned.covers(location) && few {
        return scan::tail_of(scanned.scanner.survivors(), location);
    }
    let request = Request { location: Some(location), ..Request::default() };
    scanned.scanner.scan(scanned.field, &request).tail
}
