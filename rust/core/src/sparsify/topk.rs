//! Exact top-k in one read of the tensor.
//!
//! The read that adds the gradient to the residual also compacts the entries above a *tracked
//! bound*, somewhat below the last step's k-th magnitude. If at least k survive, the k largest
//! survivors are the k largest entries, whatever the bound was: it costs time when it is off, but
//! never changes the result.

use super::{Scanned, Selected, Tracker, largest};
use crate::scan::Request;

pub(super) fn request(
    k: u64,
    numel: usize,
    tracker: &Tracker,
    at: impl Fn(usize) -> f32,
    scratch: &mut Vec<u32>,
) -> Request {
    let everything = largest::aim(k) >= numel as f64;
    let bound = match tracker.bound {
        _ if everything => 0.0,
        Some(bound) => bound,
        None => largest::first_bound(k, numel, at, scratch),
    };
    Request { bound: Some(bound), cap: largest::cap(k, numel), ..Request::default() }
}

pub(super) fn select(k: u64, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
    let first = scanned.scanner.survivors().len();
    let bound = scanned.request.bound.filter(|_| scanned.totals.complete);
    let threshold = largest::keep(k, scanned);
    tracker.bound = (scanned.scanner.survivors().len() as u64 == k)
        .then(|| next_bound(threshold, k, bound.map(|bound| (bound, first))));
    Selected { target: Some(k), threshold }
}

/// The bound for the next step, aimed at [`largest::aim`] survivors.
///
/// Between the last bound and the threshold the tail is taken to be exponential: its slope follows
/// from how many entries survived each.
pub(super) fn next_bound(threshold: f32, k: u64, last: Option<(f32, usize)>) -> f32 {
    let top = f64::from(threshold);
    let guess = match last {
        Some((bound, survivors)) if survivors as f64 > 1.1 * k as f64 && bound < threshold => {
            let slope = (top - f64::from(bound)) / libm::log(survivors as f64 / k as f64);
            top - slope * libm::log(largest::aim(k) / k as f64)
        }
        _ => 0.75 * top,
    };
    guess.clamp(0.25 * top, 0.98 * top) as f32
}
