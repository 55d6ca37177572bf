//! A fixed threshold, in one read of the tensor.

use crate::scan::Request;

/// Entries whose magnitude is strictly above a threshold.
///
/// Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The threshold, finite and not negative.
    pub threshold: f32,
}

pub(super) fn request(threshold: f32) -> Request {
    Request::above(threshold, usize::MAX)
}
