//! How many entries to keep.

use crate::part::Options;
use crate::{Error, Result};

/// How many entries to keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// A fraction of the tensor's entries, in (0, 1], rounded down, but at least one entry.
    Ratio(f64),
    /// A number of entries, at least 1.
    Count(u64),
}

impl Amount {
    /// The option `k`, or where there is none `ratio`.
    pub(super) fn read(options: &Options) -> Result<Self> {
        Ok(match options.get::<Option<u64>>("k")? {
            Some(k) => Self::Count(k),
            None => Self::Ratio(options.get("ratio")?),
        })
    }

    /// The number of entries to keep of a tensor of `numel` elements.
    pub fn of(self, numel: usize) -> u64 {
        let numel = numel as u64;
        let wanted = match self {
            Self::Ratio(ratio) => ((numel as f64 * ratio) as u64).max(1),
            Self::Count(count) => count,
        };
        wanted.min(numel)
    }

    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Ratio(ratio) if !(ratio > 0.0 && ratio <= 1.0) => {
                Err(Error::argument(format!("ratio must be in (0, 1], got {ratio}")))
            }
            Self::Count(0) => Err(Error::argument("k must be at least 1, got 0")),
            _ => Ok(()),
        }
    }
}

/// Bounds of achieved/wanted entries.
pub(super) type Band = Option<(f64, f64)>;

/// Reads the option `band`.
pub(super) fn read_band(options: &Options) -> Result<Band> {
    Ok(options.get::<Option<[f64; 2]>>("band")?.map(|[low, high]| (low, high)))
}

/// An error for a band that is none.
pub(super) fn check_band(band: Band) -> Result<()> {
    if let Some((low, high)) = band
        && !(0.0..=1.0).contains(&low) | !(high >= 1.0 && high.is_finite())
    {
        return Err(Error::argument(format!(
            "band must be (low, high) with 0 <= low <= 1 <= high, got ({low}, {high})"
        )));
    }
    Ok(())
}
