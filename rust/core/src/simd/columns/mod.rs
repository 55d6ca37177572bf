//! Codes of the columns of some rows, one column after the other.
//!
//! [`STRIP`] rows lie beside one another: entry `i` of a strip is a [`Lane`], column `i` of all of them. Rows
//! have nothing to do with one another, so that every loop over a lane becomes vectors.

use super::cells::{Cells, WHOLE};
use super::product::Matrix;
use super::stamp::stamp;

/// Rows of a strip.
pub const STRIP: usize = 32;

/// A column of a strip.
pub type Lane = [f32; STRIP];

/// The grids of a block in all rows of a strip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grids {
    /// The distance of two codes.
    pub steps: Lane,
    /// One over that, or zero.
    pub inverses: Lane,
    /// The values of code 0.
    pub bases: Lane,
}

impl Grids {
    /// Codes that are all zero.
    pub const ZERO: Self =
        Self { steps: [0.0; STRIP], inverses: [0.0; STRIP], bases: [0.0; STRIP] };

    /// Changes the grid of one row.
    pub fn set(&mut self, row: usize, [step, base]: [f32; 2]) {
        self.steps[row] = step;
        self.inverses[row] = if step > 0.0 { 1.0 / step } else { 0.0 };
        self.bases[row] = base;
    }

    /// The codes next to values, as numbers.
    #[inline(always)]
    pub fn nearest(&self, cells: Cells, values: &Lane) -> Lane {
        let mut codes = [0.0; STRIP];
        for i in 0..STRIP {
            let place = cells.place(values[i], self.inverses[i], self.bases[i]);
            codes[i] = (place + WHOLE) - WHOLE;
        }
        codes
    }

    /// The values of codes.
    #[inline(always)]
    pub fn values(&self, codes: &Lane) -> Lane {
        let mut values = [0.0; STRIP];
        for i in 0..STRIP {
            values[i] = self.bases[i] + self.steps[i] * codes[i];
        }
        values
    }
}

/// Columns that are rounded in turn.
#[derive(Debug, Clone, Copy)]
pub struct Turns<'a> {
    /// How much of what is left of a column (of the matrix) each later one (a row) takes over.
    pub factor: Matrix<'a>,
    /// The grids of all blocks.
    pub grids: &'a [Grids],
    /// Whose block a column is of.
    pub blocks: &'a [u32],
    /// What grids have in common.
    pub cells: Cells,
}

/// Rounds each target, moved by what is left of the columns before it. `left` comes in as weights, and goes
/// out as what codes leave of them; targets go out as they were rounded.
#[inline(always)]
fn round(turns: Turns<'_>, targets: &mut [Lane], left: &mut [Lane], codes: &mut [Lane]) {
    let Turns { factor, grids, blocks, cells } = turns;
    for i in 0..targets.len() {
        let mut target = targets[i];
        let row = &factor.values[i * factor.stride..][..i];
        for (&share, left) in row.iter().zip(&left[..i]) {
            for (target, left) in target.iter_mut().zip(left) {
                *target += share * left;
            }
        }
        let grid = &grids[blocks[i] as usize];
        let chosen = grid.nearest(cells, &target);
        for (left, value) in left[i].iter_mut().zip(grid.values(&chosen)) {
            *left -= value;
        }
        (targets[i], codes[i]) = (target, chosen);
    }
}

/// Columns of one block whose codes descend.
#[derive(Debug, Clone, Copy)]
pub struct Descent<'a> {
    /// The matrix of the objective, these columns alone.
    pub matrix: Matrix<'a>,
    /// One over its diagonal, or zero where a column is left as it is.
    pub inverses: &'a [f32],
    /// The grids of the block.
    pub grids: &'a Grids,
    /// What grids have in common.
    pub cells: Cells,
}

/// Gives each column in turn the codes with the least objective, all others as they are. `slopes` are errors
/// times the matrix, and stay that; values change by `changes`. Tells whether any code has changed.
#[inline(always)]
fn descend(
    descent: Descent<'_>,
    slopes: &mut [Lane],
    codes: &mut [Lane],
    changes: &mut [Lane],
) -> bool {
    let Descent { matrix, inverses, grids, cells } = descent;
    let mut any = false;
    for i in 0..slopes.len() {
        let before = grids.values(&codes[i]);
        let mut target = before;
        for (target, slope) in target.iter_mut().zip(&slopes[i]) {
            *target -= slope * inverses[i];
        }
        let chosen = grids.nearest(cells, &target);
        if inverses[i] == 0.0 || chosen == codes[i] {
            continue;
        }
        any = true;
        codes[i] = chosen;
        let mut change = grids.values(&chosen);
        for x in 0..STRIP {
            change[x] -= before[x];
            changes[i][x] += change[x];
        }
        let row = &matrix.values[i * matrix.stride..][..slopes.len()];
        for (slopes, &share) in slopes.iter_mut().zip(row) {
            for (slope, change) in slopes.iter_mut().zip(&change) {
                *slope += share * change;
            }
        }
    }
    any
}

/// Codes in turn.
pub(in crate::simd) mod turns {
    use super::{Lane, Turns, round, stamp};
    stamp!(
        fn(
            turns: Turns<'_>,
            targets: &mut [Lane],
            left: &mut [Lane],
            codes: &mut [Lane],
        ) => round
    );
}

/// Codes that descend.
pub(in crate::simd) mod descent {
    use super::{Descent, Lane, descend, stamp};
    stamp!(
        fn(
            descent: Descent<'_>,
            slopes: &mut [Lane],
            codes: &mut [Lane],
            changes: &mut [Lane],
        ) -> bool => descend
    );
}
