//! SIDCo: a threshold from a distribution fitted to the magnitudes, in several stages.
//!
//! Abdelmoniem, Elzanaty, Alouini and Canini, "An Efficient Statistical-based Gradient Compression
//! Technique for Distributed Training Systems", MLSys 2021.
//!
//! The read that adds the gradient to the residual takes the moments of the exceedances over the
//! last step's first threshold, and compacts the entries above a bound that later stages are
//! expected to reach; those stages then work on the candidates alone. If there is no last step, or
//! its threshold has become useless, the first stage is fitted to the moments of all magnitudes, as
//! published, and the tensor is read once more for the exceedances over the new threshold. A bound
//! that was too high costs another read but never changes the result: sums over candidates equal sums
//! over the tensor to the last bit.
//!
//! A fit outside the band costs the exact selection in addition. If that happens most of the time,
//! the controller makes the next steps skip the fit and select exactly.
//!
//! [`Mode::Paper`] with no band is the published method, and follows the authors' code
//! (sands-lab/SIDCo, `compression.py`, the classes with error compensation; `--stages -1`) but for
//! this: a controller for each tensor, where theirs is one for all; the location of a tail is the last
//! threshold, not the smallest candidate; the gamma shape is the maximum-likelihood one, not its closed
//! approximation (within 1.4 %); sums are taken in float64; a target of `first_ratio` or more takes one
//! stage, where theirs lowers the threshold again; and where nothing can be fitted (equal magnitudes)
//! or fewer than eight survive, the exact selection or the last threshold serves, where theirs divides
//! by zero or raises an error.

mod stages;

use super::largest::{self, Kept};
use super::tracker;
use super::{Amount, Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted, amount, topk};
use crate::fit::{Controller, Distribution, Mode};
use crate::part::{Options, Part};
use crate::scan::{Request, magnitude_above};
use crate::{Error, Result};

/// What SIDCo remembers of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stages {
    /// Where the first stage is expected to put its threshold.
    location: Option<f32>,
    controller: Controller,
}

/// The name under which the controller's scalars are saved.
const CONTROLLER: &str = "controller.";

impl Stages {
    /// By name, for a checkpoint.
    pub fn scalars(&self) -> impl Iterator<Item = (String, f64)> {
        let location = self.location.map(|location| ("location".to_owned(), f64::from(location)));
        let own = self.controller.scalars().into_iter();
        location.into_iter().chain(own.map(|(name, value)| (format!("{CONTROLLER}{name}"), value)))
    }

    /// Restores what [`Stages::scalars`] gave, or nothing of it.
    pub fn load(&mut self, scalars: &[(String, f64)]) -> Result<()> {
        let location = tracker::magnitude(scalars, "location")?;
        let own: Vec<_> = scalars
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(CONTROLLER)?.into(), *value)))
            .collect();
        self.controller.load_scalars(&own)?;
        self.location = location;
        Ok(())
    }
}

/// SIDCo's threshold estimation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sid {
    /// The share of entries aimed at, in (0, 1].
    pub ratio: f64,
    /// The distribution fitted.
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

    fn target(self, numel: usize) -> u64 {
        Amount::Ratio(self.ratio).of(numel)
    }

    /// The share of entries really aimed at, which rounding to whole entries changes.
    fn share(self, numel: usize) -> f64 {
        self.target(numel) as f64 / numel.max(1) as f64
    }

    pub(super) fn stages(self, numel: usize) -> Stages {
        let controller = Controller::new(self.mode, self.distribution, self.share(numel));
        Stages { location: None, controller }
    }

    /// How many entries the stages after the second are expected to need.
    fn expected_survivors(self, numel: usize, tracker: &Tracker) -> f64 {
        let k = self.target(numel);
        let plan = |c: &Controller| c.plan(k, numel as u64, self.first_ratio);
        let second = match tracker.stages.as_ref().map(|stages| plan(&stages.controller)) {
            Some(plan) if plan.stages() >= 3 => 1.5 * plan.expected(numel as u64, 2),
            _ => 0.0,
        };
        let second = second.min(numel as f64 / stages::FEW as f64);
        largest::aim(k, numel).max(second)
    }

    /// Keeps the entries above the fitted threshold; none where that is outside the band. Tells the
    /// controller.
    fn apply(
        self,
        k: u64,
        fitted: f32,
        tracker: &mut Tracker,
        scanned: &mut Scanned<'_, '_>,
    ) -> Option<Kept> {
        if !scanned.covers(fitted) {
            let cap = match self.band {
                Some(_) => largest::cap(k, scanned.numel()),
                None => usize::MAX,
            };
            scanned.compact(fitted, cap);
        }
        let candidates = scanned.scanner.candidates();
        let above = candidates.values().iter().filter(|v| v.abs() > fitted).count();
        // More than could be kept is far more than wanted.
        let above = if scanned.totals.complete { above as f64 } else { scanned.numel() as f64 };
        let achieved = above / k as f64;
        if let Some(stages) = &mut tracker.stages {
            stages.controller.observe(achieved);
        }
        let most = self.max_count(scanned.numel()) as f64;
        let inside = self.band.is_none_or(|(low, _)| achieved >= low && above <= most);
        if !inside {
            return None;
        }
        let (bound, candidates) = (scanned.request.bound().unwrap_or(0.0), candidates.len());
        let kernels = scanned.scanner.kernels;
        scanned.scanner.candidates_mut().keep_above(kernels, fitted);
        Some(Kept { threshold: fitted, bound, candidates })
    }
}

impl Part for Sid {
    const KIND: &'static str = "sid";

    fn read(options: &Options) -> Result<Self> {
        let distributions = [
            ("pareto", Distribution::GeneralizedPareto),
            ("exponential", Distribution::Exponential),
            ("gamma", Distribution::Gamma),
        ];
        let modes =
            [("adaptive", Mode::Adaptive), ("paper", Mode::Paper), ("tracking", Mode::Tracking)];
        let fixed = options.get("stages").map(Mode::Fixed);
        Ok(Self {
            ratio: options.get("ratio")?,
            distribution: options.choose("distribution", &distributions)?,
            mode: fixed.or_else(|_| options.choose("stages", &modes))?,
            first_ratio: options.get("first_ratio")?,
            band: amount::read_band(options)?,
        })
    }

    fn check(self) -> Result<()> {
        Amount::Ratio(self.ratio).check()?;
        if !(self.first_ratio > 0.0 && self.first_ratio < 1.0) {
            let given = self.first_ratio;
            return Err(Error::argument(format!("first_ratio must be in (0, 1), got {given}")));
        }
        amount::check_band(self.band)?;
        if self.mode == Mode::Fixed(0) {
            return Err(Error::argument("stages must be at least 1, got 0"));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { ratio: other.ratio, ..self }
    }

    fn examples() -> Vec<Self> {
        let laws =
            [Distribution::Exponential, Distribution::Gamma, Distribution::GeneralizedPareto];
        let ratios = [1e-3, 0.01, 0.1, 0.5].map(Self::new);
        let all = laws.map(|distribution| ratios.map(|sid| Self { distribution, ..sid }));
        let paper = Self { mode: Mode::Paper, band: None, ..Self::new(0.01) };
        let modes = [Mode::Paper, Mode::Fixed(3)].map(|mode| Self { mode, ..paper });
        let tracking = Self { mode: Mode::Tracking, first_ratio: 0.5, ..Self::new(0.01) };
        all.into_iter().flatten().chain(modes).chain([tracking]).collect()
    }
}

impl Sparsify for Sid {
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

    fn tracker(self, numel: usize) -> Tracker {
        Tracker { stages: Some(self.stages(numel)), ..Tracker::default() }
    }

    fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        let (numel, tracker) = (unread.numel(), unread.tracker);
        if rests(tracker) {
            return topk::request(self.target(numel), unread).into();
        }
        let wanted = self.expected_survivors(numel, tracker);
        let everything = wanted >= numel as f64;
        let bound = match tracker.bound {
            _ if everything => 0.0,
            Some(bound) => bound,
            None => {
                let Unread { tensor, scratch, .. } = unread;
                magnitude_above(numel, wanted, |i| tensor.at(i), scratch)
            }
        };
        let location = match self.mode {
            Mode::Tracking => None,
            Mode::Adaptive => Some(tracker.stages.as_ref().and_then(|s| s.location).unwrap_or(0.0)),
            Mode::Paper | Mode::Fixed(_) => Some(0.0),
        };
        let logs = self.distribution.needs_log() && location == Some(0.0);
        let cap = largest::cap(wanted as u64, numel);
        Request { location, logs, ..Request::above(bound, cap) }.into()
    }

    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let k = self.target(scanned.numel());
        if rests(tracker) {
            if let Some(stages) = &mut tracker.stages {
                stages.controller.rested();
                stages.location = None;
            }
            return topk::select(k, tracker, scanned);
        }
        // Nothing can be learnt from a tensor of zeros.
        let zeros = scanned.totals.peak == 0;
        let fitted = if zeros { None } else { self.fit(k, tracker, scanned) };
        let kept = fitted.and_then(|fitted| self.apply(k, fitted.threshold, tracker, scanned));
        if let Some(stages) = tracker.stages.as_mut().filter(|_| self.band.is_some() && !zeros) {
            stages.controller.judge(kept.is_some());
        }
        let kept = kept.unwrap_or_else(|| largest::keep(k, scanned));
        let selected = scanned.scanner.candidates().len() as u64;
        let growth = topk::track(selected, scanned.numel(), kept, tracker);
        if let Some(stages) = &mut tracker.stages {
            stages.location = fitted.and_then(|fitted| fitted.location).map(|at| at * growth);
        }
        // Stages after the second work on what was above its threshold.
        if let Some(below) = fitted.and_then(|fitted| fitted.below_second) {
            tracker.bound = Some(below * growth);
        }
        Selected { target: Some(k), threshold: kept.threshold, magnitude: None }
    }
}

/// Whether fits have missed so often that the exact selection is taken at once.
fn rests(tracker: &Tracker) -> bool {
    tracker.stages.as_ref().is_some_and(|stages| stages.controller.rests())
}
