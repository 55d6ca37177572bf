//! Every entry.

use super::{Facts, Positions, Route, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::Result;
use crate::part::without_options;
use crate::scan::Request;

/// Every entry: frames are dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct All;

without_options!(All, "all");

impl Sparsify for All {
    fn facts(self) -> Facts {
        Facts { route: Route::Every, positions: Positions::Any, seed: None, tells_magnitude: false }
    }

    fn check_numel(self, _: usize) -> Result<()> {
        Ok(())
    }

    fn max_count(self, numel: usize) -> u64 {
        numel as u64
    }

    fn asks_for_all(self, _: usize) -> bool {
        true
    }

    fn tracker(self, _: usize) -> Tracker {
        Tracker::default()
    }

    fn scratch(self, _: usize) -> usize {
        0
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        Request::default().into()
    }

    fn select(self, _: &mut Tracker, _: &mut Scanned<'_, '_>) -> Selected {
        Selected::wanted(None)
    }
}
