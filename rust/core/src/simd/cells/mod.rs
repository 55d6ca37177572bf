//! Values to codes of an affine grid, and back: `base + step * code`.
//!
//! A code is one byte. Grids of values that are multiplied by a power of two, which keeps all numbers
//! normal: `code = clamp(round((x * power - base) * inverse))`, ties to even, or randomly as in
//! [`grid`](super::grid). Bases and inverses of steps are given for each entry, so that blocks of any
//! size run through the same loop; they are numbers of float16 and their inverses, so that no product
//! is infinite.

pub(crate) mod half;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::stamp::stamp;
use super::{LANES, Pair};
use crate::rng::Key;

/// What the codes of all blocks have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cells {
    /// The highest code.
    most: f32,
    /// What values are multiplied by.
    pub power: f32,
}

/// How many grids errors are compared on.
pub const GRIDS: usize = 16;

/// The distance of two codes, and the value of code 0.
pub type Grid = [f32; 2];

/// How many numbers [`Key::unit`] has.
const CELLS: f32 = 16_777_216.0;

/// Adding this rounds a number from 0 to 255 to a whole one, ties to even, into the lowest bits.
pub(super) const WHOLE: f32 = 8_388_608.0;

impl Cells {
    /// Codes of so many bits, 1 to 8, of values times a power of two.
    pub fn new(bits: u8, power: f32) -> Self {
        Self { most: ((1_u32 << bits.clamp(1, 8)) - 1) as f32, power }
    }

    /// Where a value lies on the grid, from 0 to the highest code, whatever value and grid are.
    #[inline(always)]
    pub(super) fn place(self, x: f32, inverse: f32, base: f32) -> f32 {
        let place = (x * self.power - base) * inverse;
        // Of a NaN zero.
        let place = if place > 0.0 { place } else { 0.0 };
        if place < self.most { place } else { self.most }
    }
}

/// The whole number next to a place, in the lowest bits.
#[inline(always)]
fn nearest(place: f32) -> u32 {
    (place + WHOLE).to_bits()
}

#[inline(always)]
fn round(x: &[f32], cells: Cells, [inverses, bases]: Pair<'_>, codes: &mut [u8]) {
    let grids = inverses.iter().zip(bases);
    for ((code, &x), (&inverse, &base)) in codes.iter_mut().zip(x).zip(grids) {
        *code = nearest(cells.place(x, inverse, base)) as u8;
    }
}

#[inline(always)]
fn round_randomly(
    x: &[f32],
    cells: Cells,
    [inverses, bases]: Pair<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    let mut nearest = u32::MAX;
    let entries = codes.iter_mut().zip(x).zip(inverses.iter().zip(bases));
    for (i, ((code, &x), (&inverse, &base))) in entries.enumerate() {
        let (whole, part) = split(cells.place(x, inverse, base));
        // `key.unit() < part`, in whole numbers; where both are of one cell, that is not known yet.
        let (cell, _) = split(part * CELLS);
        let below = (key.bits(first.wrapping_add(i as u32)) >> 8).wrapping_sub(cell as u32);
        nearest = nearest.min(below);
        *code = (whole as u32 + (below >> 31)) as u8;
    }
    if nearest == 0 {
        settle(x, cells, [inverses, bases], key, first, codes);
    }
}

/// Rounds a block in which a draw has left open what to do: one in thousands.
#[cold]
#[inline(never)]
fn settle(
    x: &[f32],
    cells: Cells,
    [inverses, bases]: Pair<'_>,
    key: Key,
    first: u32,
    codes: &mut [u8],
) {
    let entries = codes.iter_mut().zip(x).zip(inverses.iter().zip(bases));
    for (i, ((code, &x), (&inverse, &base))) in entries.enumerate() {
        let (whole, part) = split(cells.place(x, inverse, base));
        *code = (whole + i32::from(key.chance(first.wrapping_add(i as u32), part))) as u8;
    }
}

/// The whole number below a place, and how far it is from there.
#[inline(always)]
fn split(place: f32) -> (i32, f32) {
    // SAFETY: from 0 to 2^24.
    let whole: i32 = unsafe { place.to_int_unchecked() };
    (whole, place - whole as f32)
}

#[inline(always)]
fn restore(codes: &[u8], [steps, bases]: Pair<'_>, out: &mut [f32]) {
    for ((out, &code), (&step, &base)) in out.iter_mut().zip(codes).zip(steps.iter().zip(bases)) {
        *out = base + step * f32::from(code);
    }
}

/// Adds up the squared errors of the nearest codes on each of many grids, in float32 within a block of
/// values, one after the other.
#[inline(always)]
fn add_errors(x: &[f32], cells: Cells, grids: &[Grid; GRIDS], errors: &mut [f64; GRIDS]) {
    let (mut bases, mut inverses, mut sums) = ([0.0; GRIDS], [0.0; GRIDS], [0.0; GRIDS]);
    for ((base, inverse), grid) in bases.iter_mut().zip(&mut inverses).zip(grids) {
        *base = grid[1];
        *inverse = if grid[0] > 0.0 { 1.0 / grid[0] } else { 0.0 };
    }
    for &x in x {
        let x = x * cells.power;
        for i in 0..GRIDS {
            let place = (x - bases[i]) * inverses[i];
            let inside = if place > 0.0 { place } else { 0.0 };
            let inside = if inside < cells.most { inside } else { cells.most };
            let error = place - ((inside + WHOLE) - WHOLE);
            sums[i] += error * error;
        }
    }
    for i in 0..GRIDS {
        let step = f64::from(grids[i][0]);
        errors[i] += f64::from(sums[i]) * (step * step);
    }
}

/// Equal cells of each range, read at their centres, after it has lost these shares of itself at either end, of
/// codes up to `most`. The base is rounded down, and the step then reaches to the upper end: so a block far
/// from zero is covered, too.
#[inline(always)]
fn cut_ranges(ends: &[[f32; 2]], shares: &[f32], most: f32, out: &mut [Grid]) {
    let (per_cell, per_cell_but_half) = (1.0 / (most + 1.0), 1.0 / (most + 0.5));
    for (&[least, largest], out) in ends.iter().zip(out.chunks_exact_mut(shares.len())) {
        for (out, share) in out.iter_mut().zip(shares) {
            let less = share * (largest - least);
            let (least, largest) = (least + less, largest - less);
            let base = half::down(least + 0.5 * (largest - least) * per_cell);
            let step = (largest - base) * per_cell_but_half;
            *out = [half::near(if step > 0.0 { step } else { 0.0 }), base];
        }
    }
}

/// Codes from one end of each range to the other, and not less, of codes up to `most`.
#[inline(always)]
fn cover_ranges(ends: &[[f32; 2]], most: f32, out: &mut [Grid]) {
    let per_step = 1.0 / most;
    for (&[least, largest], out) in ends.iter().zip(out) {
        let base = half::down(least);
        *out = [half::up((largest - base) * per_step), base];
    }
}

/// Of each group of `len` values in a row, the last of which may be shorter.
#[inline(always)]
pub(in crate::simd) fn extremes_of_groups(x: &[f32], len: usize, out: &mut [[f32; 2]]) {
    let less = |a: f32, b: f32| if b < a { b } else { a };
    let more = |a: f32, b: f32| if b > a { b } else { a };
    for (out, group) in out.iter_mut().zip(x.chunks(len)) {
        let (mut least, mut largest) = ([group[0]; LANES], [group[0]; LANES]);
        let (whole, rest) = group.as_chunks::<LANES>();
        for x in whole {
            for i in 0..LANES {
                least[i] = less(least[i], x[i]);
                largest[i] = more(largest[i], x[i]);
            }
        }
        for (i, &x) in rest.iter().enumerate() {
            least[i] = less(least[i], x);
            largest[i] = more(largest[i], x);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                least[i] = less(least[i], least[i + width]);
                largest[i] = more(largest[i], largest[i + width]);
            }
            width /= 2;
        }
        *out = [least[0], largest[0]];
    }
}

/// Values to the nearest codes.
pub(in crate::simd) mod to_cells {
    use super::{Cells, Pair, round, stamp};
    stamp!(fn(x: &[f32], cells: Cells, grids: Pair<'_>, codes: &mut [u8]) => round);
}

/// Values to one of the two codes around them, randomly.
pub(in crate::simd) mod to_random_cells {
    use super::{Cells, Key, Pair, round_randomly, stamp};
    stamp!(
        fn(
            x: &[f32],
            cells: Cells,
            grids: Pair<'_>,
            key: Key,
            first: u32,
            codes: &mut [u8],
        ) => round_randomly
    );
}

/// Codes to values.
pub(in crate::simd) mod from_cells {
    use super::{Pair, restore, stamp};
    stamp!(fn(codes: &[u8], grids: Pair<'_>, out: &mut [f32]) => restore);
}

/// The squared errors of the nearest codes on many grids.
pub(in crate::simd) mod errors {
    use super::{Cells, GRIDS, Grid, add_errors, stamp};
    stamp!(fn(x: &[f32], cells: Cells, grids: &[Grid; GRIDS], errors: &mut [f64; GRIDS]) => add_errors);
}

/// The grids of equal cells of ranges.
pub(in crate::simd) mod cut {
    use super::{Grid, cut_ranges, stamp};
    stamp!(fn(ends: &[[f32; 2]], shares: &[f32], most: f32, out: &mut [Grid]) => cut_ranges);
}

/// The grids of ranges that have codes at their ends.
pub(in crate::simd) mod cover {
    use super::{Grid, cover_ranges, stamp};
    stamp!(fn(ends: &[[f32; 2]], most: f32, out: &mut [Grid]) => cover_ranges);
}

/// The least and the largest value of each group.
pub(in crate::simd) mod extremes {
    pub(in crate::simd) use super::extremes_of_groups as scalar;
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use super::extremes_of_groups as neon;

    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{extremes as avx2, extremes as avx512};
}

#[cfg(test)]
mod tests;
