//! AdaComp: the entries of each bin that are close to its largest.
//!
//! Chen, Choi, Brand, Agrawal, Zhang and Gopalakrishnan, "AdaComp : Adaptive Residual Gradient
//! Compression for Data-Parallel Distributed Training", AAAI 2018, section 3 (algorithm 2). With `G`
//! the residual plus the new gradient `dW`, an entry is sent if `|G + (soft - 1) dW|` is at least the
//! largest `|G|` of its bin; with `soft = 2`, if the same gradient once more would make it as large.
//! The number of entries per bin depends on the data, and no threshold is needed.
//!
//! A bin of zeros sends nothing, although all of its entries pass the test. All entries are sent as
//! one magnitude with the sign of `G`: the mean, over all bins, of the largest magnitude.

use super::{Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted};
use crate::part::{Options, Part};
use crate::scan::{Bins, Entries, Request};
use crate::{Error, Result};

/// AdaComp's selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BinMax {
    /// Elements of a bin; the last one of a tensor may be shorter.
    pub bin: u32,
    /// How much of the new gradient the test counts, in units of it, from 1 on: 2 as published.
    pub soft: f32,
}

impl Part for BinMax {
    const KIND: &'static str = "bin_max";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            // Of a tensor whose shape is not known: it may as well be a matrix.
            bin: options.get::<Option<u32>>("bin")?.unwrap_or(500),
            soft: options.get("soft")?,
        })
    }

    fn check(self) -> Result<()> {
        let Self { bin, soft } = self;
        if bin == 0 {
            return Err(Error::argument("bin must be at least 1, got 0"));
        }
        if !(soft >= 1.0 && soft.is_finite()) {
            return Err(Error::argument(format!("soft must be finite and at least 1, got {soft}")));
        }
        Ok(())
    }

    fn examples() -> Vec<Self> {
        [(1, 2.0), (50, 2.0), (500, 2.0), (5000, 2.0), (64, 1.0)]
            .map(|(bin, soft)| Self { bin, soft })
            .to_vec()
    }
}

impl Sparsify for BinMax {
    fn facts(self) -> Facts {
        Facts { tells_magnitude: true, ..Facts::SELECTED }
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        let bins = Bins { bin: self.bin as usize, ahead: self.soft - 1.0 };
        Request::of(Entries::Bins(bins)).into()
    }

    fn select(self, _: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        // The candidates of the read are the selection; what is left is their magnitude.
        let bins = scanned.numel().div_ceil(self.bin as usize).max(1);
        let magnitude = (scanned.totals.moments.sum / bins as f64) as f32;
        Selected { target: None, threshold: 0.0, magnitude: Some(magnitude) }
    }
}
