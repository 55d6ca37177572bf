//! A fixed threshold, in one read of the tensor.

use super::{Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::part::{Options, Part};
use crate::scan::Request;
use crate::{Error, Result};

/// Entries whose magnitude is strictly above a threshold.
///
/// Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The threshold, finite and not negative.
    pub threshold: f32,
}

impl Part for Threshold {
    const KIND: &'static str = "threshold";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { threshold: options.get("threshold")? })
    }

    fn check(self) -> Result<()> {
        let threshold = self.threshold;
        if threshold >= 0.0 && threshold.is_finite() {
            return Ok(());
        }
        Err(Error::argument(format!("threshold must be finite and >= 0, got {threshold}")))
    }

    fn sized_as(self, other: Self) -> Self {
        other
    }

    fn examples() -> Vec<Self> {
        [0.0, 0.1, 1e9].map(|threshold| Self { threshold }).to_vec()
    }
}

impl Sparsify for Threshold {
    fn facts(self) -> Facts {
        Facts { tells_magnitude: true, ..Facts::SELECTED }
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        Request::above(self.threshold, usize::MAX).into()
    }

    fn select(self, _: &mut Tracker, _: &mut Scanned<'_, '_>) -> Selected {
        let threshold = self.threshold;
        Selected { target: None, threshold, magnitude: Some(threshold) }
    }
}
