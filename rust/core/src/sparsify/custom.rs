//! A selection from outside of this crate.

use super::{Facts, Route, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::Result;
use crate::part::{Options, Part};
use crate::rng::tensor_id;
use crate::scan::Request;

/// Entries that are selected outside of this crate: encode them with [`Codec::encode_at`].
///
/// [`Codec::encode_at`]: crate::codec::Codec::encode_at
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Custom {
    /// An identifier, to tell custom sparsifiers apart.
    pub id: u64,
}

impl Part for Custom {
    const KIND: &'static str = "custom";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self { id: tensor_id(&options.get::<String>("name")?) })
    }

    fn examples() -> Vec<Self> {
        [1, 2].map(|id| Self { id }).to_vec()
    }
}

impl Sparsify for Custom {
    fn facts(self) -> Facts {
        Facts { route: Route::Given, ..Facts::SELECTED }
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        Request::default().into()
    }

    fn select(self, _: &mut Tracker, _: &mut Scanned<'_, '_>) -> Selected {
        Selected::wanted(None)
    }
}
