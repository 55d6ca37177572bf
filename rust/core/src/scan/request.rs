//! What to gather while a tensor is read.

use super::{Bins, Chunks};

/// What to gather while reading. The largest magnitude always is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    /// Moments of the exceedances over this location; over zero, of the magnitudes.
    pub location: Option<f32>,
    /// The sum of logarithms too, of the magnitudes. They are taken of what was written, so such a
    /// read does not stream.
    pub logs: bool,
    /// The sum of the values with their signs, of what was written too.
    pub signed: bool,
    /// Which entries to keep.
    pub entries: Entries,
}

/// Which entries a read keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Entries {
    /// None.
    #[default]
    None,
    /// None, and no look at any of them: nothing needs to be read, unless a memory does.
    Unseen,
    /// Those whose magnitude is above a bound.
    Above {
        bound: f32,
        /// How many to keep at most: beyond that, none are.
        cap: usize,
    },
    /// Some of each bin. The sum of the moments is then that of the maxima, and there are no others.
    Bins(Bins),
    /// The largest of each chunk, if the sums are not written. Where they are, one loop that adds and
    /// writes, and a search after it, are faster: then none are kept.
    Chunks(Chunks),
}

impl Request {
    /// Keeps the entries above a bound, unless they are more than `cap`.
    pub fn above(bound: f32, cap: usize) -> Self {
        Self::of(Entries::Above { bound, cap })
    }

    /// Keeps entries and gathers nothing else.
    pub fn of(entries: Entries) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Gathers moments over a location and keeps no entries.
    pub fn moments(location: f32) -> Self {
        Self { location: Some(location), ..Self::default() }
    }

    /// The bound above which entries are kept, if that is how they are chosen.
    pub fn bound(&self) -> Option<f32> {
        match self.entries {
            Entries::Above { bound, .. } => Some(bound),
            _ => None,
        }
    }

    /// Whether what was written is read again while it is in the cache.
    pub fn reads_back(&self) -> bool {
        let bins = matches!(self.entries, Entries::Bins(bins) if bins.reads_back());
        self.logs || self.signed || bins
    }
}
