//! The best step and base of a block, by its codes.
//!
//! With codes `c`, all else fixed, and `r` the errors of the row times `H`, the objective moves by
//! `2 (Δstep cᵀr + Δbase 1ᵀr) + Δstep² cᵀAc + 2 Δstep Δbase cᵀA1 + Δbase² 1ᵀA1`, where `A` is the block of `H`: its minimum
//! is the solution of two equations. Both numbers are rounded to float16, and count as they are then.

use super::layer::Layer;
use crate::quantize::AffineFit;
use crate::simd::cells::half::{down, near, up};

/// The largest number of float16.
const LARGEST: f32 = 65504.0;

/// Two equations are one where their determinant is less, relative to the product of the diagonal.
const SINGULAR: f64 = 1e-9;

/// Which steps and bases a block may have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// All.
    Free,
    /// Those for which this place on the grid, in codes, is zero.
    Zero(f64),
    /// Those for which this place on the grid, in codes, stays the value that it is.
    Centre(f64),
}

/// What the objective's change depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    /// `cᵀr` and `1ᵀr`.
    pub slopes: [f64; 2],
    /// `cᵀAc`, `cᵀA1` and `1ᵀA1`.
    pub curves: [f64; 3],
}

impl Rule {
    /// The rule of a layer's grids; without `bases`, grids that are not tied to zero keep their centre.
    pub fn of(layer: &Layer<'_>, bases: bool) -> Self {
        let codes = f64::from(1_u32 << layer.affine.bits);
        match layer.affine.fit {
            AffineFit::Zero => Self::Zero(0.5 * codes),
            AffineFit::Sawb => Self::Zero(0.5 * (codes - 1.0)),
            AffineFit::Range | AffineFit::Squares if bases => Self::Free,
            AffineFit::Range | AffineFit::Squares => Self::Centre(0.5 * (codes - 1.0)),
        }
    }

    /// A better grid than this one, if there is one.
    pub fn better(self, grid: [f32; 2], sums: Sums) -> Option<[f32; 2]> {
        let ([codes, ones], [squares, mixed, all]) = (sums.slopes, sums.curves);
        let [step, base] = grid.map(f64::from);
        let best = match self {
            Self::Free => {
                let determinant = squares * all - mixed * mixed;
                let is_one = determinant.is_nan() || determinant <= SINGULAR * squares * all;
                if is_one { step } else { step - (codes * all - ones * mixed) / determinant }
            }
            Self::Zero(place) | Self::Centre(place) => {
                let curve = squares - 2.0 * place * mixed + place * place * all;
                if curve > 0.0 { step - (codes - place * ones) / curve } else { step }
            }
        };
        let best = best as f32;
        let mut found = (0.0, None);
        for tried in [down(best), up(best), grid[0]] {
            let moved = f64::from(tried) - step;
            let other = match self {
                Self::Free if all > 0.0 => base - (ones + moved * mixed) / all,
                Self::Free => base,
                Self::Zero(place) => -place * f64::from(tried),
                Self::Centre(place) => base - place * moved,
            };
            let other = near(other as f32);
            let is_kept = tried == grid[0] && (tried == 0.0 || other == grid[1]);
            if is_kept || !(tried > 0.0 && tried <= LARGEST && other.abs() <= LARGEST) {
                continue;
            }
            let shifted = f64::from(other) - base;
            let change = 2.0 * (moved * codes + shifted * ones)
                + moved * moved * squares
                + 2.0 * moved * shifted * mixed
                + shifted * shifted * all;
            if change < found.0 {
                found = (change, Some([tried, other]));
            }
        }
        found.1
    }
}
