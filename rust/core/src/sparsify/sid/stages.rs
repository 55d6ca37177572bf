//! The stages of one encode, from the first threshold to the last.

use super::Sid;
use crate::fit::{self, Mode, Moments, Plan};
use crate::scan::{self, Request};
use crate::sparsify::{Scanned, Tracker};

/// Sweeping over so many entries costs as much as working on one candidate.
pub(super) const FEW: u64 = 16;

/// Candidates to have for each that the stages after the second need: magnitudes may shrink. Many
/// cost more than a read that is needed now and then.
fn spare(needed: u64, numel: u64) -> f64 {
    if needed <= numel / (4 * FEW) { 2.0 } else { 1.3 }
}

/// What the stages came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fitted {
    /// The threshold of the last stage.
    pub threshold: f32,
    /// A bound that covers the threshold of the second, if there are more and they work on few
    /// candidates.
    pub below_second: Option<f32>,
    /// A threshold for the first stage of the next step.
    pub location: Option<f32>,
}

/// A threshold, and the moments of the exceedances over it.
type Tail = (f32, Moments);

impl Sid {
    /// The multi-stage fit; `None` if no distribution can be fitted.
    pub(super) fn fit(
        self,
        k: u64,
        tracker: &Tracker,
        scanned: &mut Scanned<'_, '_>,
    ) -> Option<Fitted> {
        let numel = scanned.numel() as u64;
        let controller = &tracker.stages.as_ref()?.controller;
        let mut plan = controller.plan(k, numel, self.first_ratio);
        let first = match self.mode {
            Mode::Tracking => above_bound(k, scanned)?,
            Mode::Adaptive => match tracked(&plan, scanned) {
                Some(first) => first,
                None => self.published(&plan, scanned)?,
            },
            Mode::Paper | Mode::Fixed(_) => self.published(&plan, scanned)?,
        };
        let location = next_location(first, plan.first() * numel as f64);
        let mut fitted = Fitted { threshold: first.0, below_second: None, location };
        let mut tail = first.1;
        for stage in 2..=controller.stages() {
            let at = fitted.threshold;
            if stage > 2 {
                tail = exceedances(at, scanned);
            }
            if stage == 3 && tail.count <= numel / FEW {
                let wanted = spare(tail.count, numel) * tail.count as f64;
                fitted.below_second = next_location((at, tail), wanted);
            }
            let Some(rho) = plan.next(tail.count) else { break };
            let next = fit::tail_threshold(self.distribution, &tail, f64::from(at), rho);
            match next.map(|next| next as f32) {
                Some(next) if next > at && next.is_finite() => fitted.threshold = next,
                _ => break,
            }
        }
        Some(fitted)
    }

    /// The first stage as published: fitted to the moments of all magnitudes. Zeros are left out, but
    /// for the published method itself.
    fn published(self, plan: &Plan, scanned: &mut Scanned<'_, '_>) -> Option<Tail> {
        let logs = self.distribution.needs_log();
        let moments = match scanned.request {
            Request { location: Some(0.0), logs: had, .. } if had == logs => scanned.totals.moments,
            _ => {
                let request = Request { logs, ..Request::moments(0.0) };
                scanned.scanner.scan(scanned.tensor, &request).moments
            }
        };
        let numel = scanned.numel() as u64;
        let all = self.mode == Mode::Paper;
        let moments = if all { moments.with_zeros(numel) } else { moments };
        let threshold =
            fit::first_threshold(self.distribution, &moments, numel, plan.first())? as f32;
        Some((threshold, exceedances(threshold, scanned)))
    }
}

/// The first stage at last step's threshold. It need not be where the fit would put it, because the
/// number of entries above it is counted: anything from a third of the wanted fraction to three times
/// as much will do.
fn tracked(plan: &Plan, scanned: &Scanned<'_, '_>) -> Option<Tail> {
    let location = scanned.request.location.filter(|&location| location > 0.0)?;
    let moments = scanned.totals.moments;
    let share = moments.count as f64 / scanned.numel() as f64;
    let usable = plan.first() / 3.0..=(3.0 * plan.first()).min(0.9);
    usable.contains(&share).then_some((location, moments))
}

/// The only long stage of [`Mode::Tracking`] is left out: the tail above the bound is all there is.
fn above_bound(k: u64, scanned: &Scanned<'_, '_>) -> Option<Tail> {
    let bound = scanned.request.bound().filter(|_| scanned.totals.complete)?;
    let moments = scan::tail_of(scanned.scanner.candidates(), bound);
    (moments.count > k).then_some((bound, moments))
}

/// Where about `wanted` entries will be above, were the tail exponential between there and here.
fn next_location((location, tail): Tail, wanted: f64) -> Option<f32> {
    let count = tail.count as f64;
    let next = f64::from(location) + tail.sum / count * libm::log(count / wanted);
    (next > 0.0 && (next as f32).is_finite()).then_some(next as f32)
}

/// Moments of the exceedances over a location, from the candidates if they are all there and few.
fn exceedances(location: f32, scanned: &mut Scanned<'_, '_>) -> Moments {
    let few = scanned.scanner.candidates().len() as u64 <= scanned.numel() as u64 / FEW;
    if scanned.covers(location) && few {
        return scan::tail_of(scanned.scanner.candidates(), location);
    }
    let request = Request::moments(location);
    scanned.scanner.scan(scanned.tensor, &request).moments
}
