//! Every entry.

use super::{Facts, Route, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::part::without_options;
use crate::scan::Request;

/// Every entry: frames are dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct All;

without_options!(All, "all");

impl Sparsify for All {
    fn facts(self) -> Facts {
        Facts { route: Route::Every, ..Facts::SELECTED }
    }

    fn asks_for_all(self, _: usize) -> bool {
        true
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        Request::default().into()
    }

    fn select(self, _: &mut Tracker, _: &mut Scanned<'_, '_>) -> Selected {
        Selected::wanted(None)
    }
}
