//! Where the grid of each block lies.
//!
//! All arithmetic is on values times two to the power of the frame's exponent, which bring the largest
//! of them below half of what float16 holds. A grid is found, its numbers are rounded to float16, and only
//! then are codes chosen, or errors compared.

use super::{Affine, AffineFit, Rounding};
use crate::quantize::{Summary, power};
use crate::simd::Kernels;
use crate::simd::cells::{Cells, Grid};

/// Blocks whose grids are found at a time.
const MANY: usize = 32;

/// How often [`AffineFit::Squares`] shrinks a range, each time by [`SHRINKAGE`] of it.
const SHRUNK: usize = 25;
const SHRINKAGE: f32 = 0.0375;

/// The largest magnitude that the exponent of a frame leaves, but where that is the least one.
const MOST: f32 = 32752.0;

/// Fits the blocks of `len` values in a row, the last of which may be shorter, and writes down their
/// words. Gives the bits of the largest magnitude.
pub(super) fn groups(
    affine: Affine,
    kernels: &Kernels,
    exponent: i16,
    (values, len): (&[f32], usize),
    out: &mut [[u8; 4]],
) -> u32 {
    let cells = Cells::new(affine.bits, power::of(i32::from(exponent), 127));
    let mut peak = 0;
    for (values, out) in values.chunks(MANY.saturating_mul(len)).zip(out.chunks_mut(MANY)) {
        let (mut ends, mut grids) = ([[0.0; 2]; MANY], [[0.0; 2]; MANY]);
        let (ends, grids) = (&mut ends[..out.len()], &mut grids[..out.len()]);
        kernels.group_extremes(values, len, ends);
        for (grid, ends) in grids.iter_mut().zip(&*ends) {
            let magnitude = (ends[0].to_bits() & 0x7FFF_FFFF).max(ends[1].to_bits() & 0x7FFF_FFFF);
            peak = peak.max(magnitude);
            let ends = ends.map(|end| (end * cells.power).clamp(-MOST, MOST));
            *grid = match affine.fit {
                AffineFit::Zero => zero(affine.bits, ends),
                _ if affine.rounding == Rounding::Stochastic => over(affine.bits, ends),
                _ => cut(affine.bits, ends),
            };
        }
        match affine.fit {
            AffineFit::Range | AffineFit::Zero => {}
            AffineFit::Sawb => {
                for (grid, values) in grids.iter_mut().zip(values.chunks(len)) {
                    *grid = sawb(kernels, cells, affine.bits, values);
                }
            }
            AffineFit::Squares => {
                for ((grid, ends), values) in grids.iter_mut().zip(ends).zip(values.chunks(len)) {
                    let ends = ends.map(|end| (end * cells.power).clamp(-MOST, MOST));
                    *grid = squares(kernels, cells, affine.bits, ends, values);
                }
            }
        }
        kernels.narrow_f16(grids.as_flattened(), 1.0, out.as_flattened_mut().as_chunks_mut().0);
    }
    peak
}

/// The highest code.
fn highest(bits: u8) -> f32 {
    ((1_u32 << bits) - 1) as f32
}

/// Equal cells between two ends, read at their centres. The base is rounded down, and the step then
/// reaches to the upper end: so a block far from zero is covered, too.
fn cut(bits: u8, [least, largest]: Grid) -> Grid {
    let half = 0.5 * (largest - least) / (highest(bits) + 1.0);
    let base = down(least + half);
    [((largest - base) / (highest(bits) + 0.5)).max(0.0), base]
}

/// Codes from one end to the other.
fn over(bits: u8, [least, largest]: Grid) -> Grid {
    let base = down(least);
    [up(((largest - base) / highest(bits)).max(0.0)), base]
}

/// Symmetric, with zero the code in the middle.
fn zero(bits: u8, [least, largest]: Grid) -> Grid {
    let below = (1_u32 << (bits - 1)) as f32;
    let step = up((-least / below).max(largest / (below - 1.0)).max(0.0));
    [step, -below * step]
}

/// Symmetric, up to a clip.
fn even(bits: u8, clip: f32) -> Grid {
    let step = near(2.0 * clip / highest(bits));
    [step, near(-0.5 * highest(bits) * step)]
}

/// Choi et al., MLSys 2019: `clip = c1 * sqrt(E[w^2]) - c2 * E[|w|]`; from 5 bits on where that is
/// better than the largest magnitude.
fn sawb(kernels: &Kernels, cells: Cells, bits: u8, values: &[f32]) -> Grid {
    // 2 to 5 and 8 bits are published; of one bit the mean magnitude is best, and 6 and 7 were fitted
    // to the best clips of six distributions, as the published ones were.
    const PAIRS: [[f64; 2]; 8] = [
        [0.0, -1.0],
        [3.12, 2.064],
        [7.509, 6.892],
        [12.68, 12.80],
        [17.74, 18.64],
        [22.28, 24.12],
        [27.57, 30.39],
        [31.76, 35.04],
    ];
    let summary = Summary::of(kernels, values);
    let [first, second] = PAIRS[usize::from(bits - 1)];
    let clip = first * libm::sqrt(summary.mean_square()) - second * summary.mean_magnitude();
    let (clip, most) = ((clip * f64::from(cells.power)) as f32, summary.peak() * cells.power);
    let most = most.min(MOST);
    if !(clip > 0.0 && clip < most) {
        return even(bits, most);
    }
    let (clipped, whole) = (even(bits, clip), even(bits, most));
    if bits < 5 || error(kernels, cells, values, clipped) < error(kernels, cells, values, whole) {
        clipped
    } else {
        whole
    }
}

/// The best of ranges that shrink to both sides of their centre.
fn squares(kernels: &Kernels, cells: Cells, bits: u8, ends: Grid, values: &[f32]) -> Grid {
    let [least, largest] = ends;
    let mut best = (f64::INFINITY, [0.0; 2]);
    for i in 0..SHRUNK {
        let less = 0.5 * SHRINKAGE * i as f32 * (largest - least);
        let [step, base] = cut(bits, [least + less, largest - less]);
        let grid = [near(step), base];
        let error = error(kernels, cells, values, grid);
        if error < best.0 {
            best = (error, grid);
        }
    }
    best.1
}

/// The squared error of a block on a grid.
fn error(kernels: &Kernels, cells: Cells, values: &[f32], grid: Grid) -> f64 {
    values
        .chunks(crate::simd::BLOCK)
        .map(|values| f64::from(kernels.cells_error(values, cells, grid)))
        .sum()
}

/// Bits of float32 that float16 lacks.
const CUT: u32 = 0x1FFF;

/// The least magnitude that is a normal number of float16.
const NORMAL: f32 = 6.103_515_6e-5;

/// The nearest float16, ties to even, of a number that is not beyond them.
#[inline(always)]
fn near(number: f32) -> f32 {
    // One half has a last bit of 2^-24, as the subnormal numbers of float16.
    let subnormal = (number.abs() + 0.5) - 0.5;
    let bits = number.abs().to_bits();
    let normal = f32::from_bits((bits + (CUT >> 1) + (bits >> 13 & 1)) & !CUT);
    (if number.abs() < NORMAL { subnormal } else { normal }).copysign(number)
}

/// The largest float16 that is not above.
#[inline(always)]
fn down(number: f32) -> f32 {
    let near = near(number);
    // A number plus one in its last place, or minus: below 2^-24 that is the next subnormal.
    if near <= number { near } else { near - last_place(number) }
}

/// The least float16 that is not below.
#[inline(always)]
fn up(number: f32) -> f32 {
    -down(-number)
}

/// What the last bit of a number is worth in float16.
#[inline(always)]
fn last_place(number: f32) -> f32 {
    let exponent = number.abs().max(NORMAL).to_bits() & 0x7F80_0000;
    f32::from_bits(exponent) * 9.765_625e-4
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn numbers_are_rounded_to_float16_as_the_half_crate_does_and_to_either_side() {
        let numbers = (0..=f16::from_f32(32752.0).to_bits()).flat_map(|bits| {
            let [here, next] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f32());
            [here, here + 0.25 * (next - here), 0.5 * (here + next), here + 0.75 * (next - here)]
        });
        for number in numbers.flat_map(|number| [number, -number]) {
            assert_eq!(near(number), f16::from_f32(number).to_f32(), "{number}");
            let (below, above) = (f16::from_f32(down(number)), f16::from_f32(up(number)));
            assert!(below.to_f32() == down(number) && above.to_f32() == up(number), "{number}");
            assert!(below.to_f32() <= number && number <= above.to_f32(), "{number}");
            let steps = i32::from(above.to_bits() & 0x7FFF) - i32::from(below.to_bits() & 0x7FFF);
            assert!(steps.abs() <= 1, "{number}");
        }
    }
}
