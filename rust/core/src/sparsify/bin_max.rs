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

use super::Selected;
use crate::scan::{Bins, Entries, Request, Totals};
use crate::{Error, Result};

/// AdaComp's selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BinMax {
    /// Elements of a bin; the last one of a tensor may be shorter.
    pub bin: u32,
    /// How much of the new gradient the test counts, in units of it, from 1 on: 2 as published.
    pub soft: f32,
}

impl BinMax {
    pub(super) fn check(self) -> Result<()> {
        let Self { bin, soft } = self;
        if bin == 0 {
            return Err(Error::argument("bin must be at least 1, got 0"));
        }
        if !(soft >= 1.0 && soft.is_finite()) {
            return Err(Error::argument(format!("soft must be finite and at least 1, got {soft}")));
        }
        Ok(())
    }

    pub(super) fn request(self) -> Request {
        let bins = Bins { bin: self.bin as usize, ahead: self.soft - 1.0 };
        Request::of(Entries::Bins(bins))
    }

    /// The survivors of that read are the selection; what is left is their magnitude.
    pub(super) fn select(self, totals: &Totals, numel: usize) -> Selected {
        let bins = numel.div_ceil(self.bin as usize).max(1);
        let magnitude = (totals.moments.sum / bins as f64) as f32;
        Selected { target: None, threshold: 0.0, magnitude: Some(magnitude) }
    }
}
