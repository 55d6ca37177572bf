//! Every entry.

use super::{Positions, Route, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::Result;
use crate::part::{Options, Part};
use crate::scan::Request;

/// Every entry: frames are dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct All;

impl Part for All {
    const KIND: &'static str = "all";

    fn read(_: &Options) -> Result<Self> {
        Ok(Self)
    }

    fn check(self) -> Result<()> {
        Ok(())
    }

    fn sized_as(self, _: Self) -> Self {
        self
    }

    fn examples() -> Vec<Self> {
        vec![Self]
    }
}

impl Sparsify for All {
    fn route(self) -> Route {
        Route::Every
    }

    fn positions(self) -> Positions {
        Positions::Any
    }

    fn seed(self) -> Option<u64> {
        None
    }

    fn tells_magnitude(self) -> bool {
        false
    }

    fn check_numel(self, _: usize) -> Result<()> {
        Ok(())
    }

    fn max_count(self, numel: usize) -> u64 {
        numel as u64
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
