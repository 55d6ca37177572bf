//! Where the grid of each block lies.
//!
//! All arithmetic is on values times two to the power of the frame's exponent, which bring the largest
//! of them below half of what float16 holds. A grid is found, its numbers are rounded to float16, and only
//! then are codes chosen, or errors compared.

use super::{Affine, AffineFit, Rounding};
use crate::quantize::{Summary, peak, power};
use crate::simd::cells::{Cells, GRIDS, Grids};
use crate::simd::{BLOCK, Kernels};

/// Blocks whose grids are found at a time.
const MANY: usize = 32;

/// By how much of it [`AffineFit::Squares`] shrinks a range, each time: 24 times as long as 14 % of it.
const SHRINKAGE: f32 = 0.0375;

/// The largest magnitude that the exponent of a frame leaves, but where that is the least one.
const MOST: f32 = 32752.0;

/// Step and base.
type Grid = [f32; 2];

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
    let codes = Codes::new(affine.bits);
    let mut most = 0;
    for (values, out) in values.chunks(MANY.saturating_mul(len)).zip(out.chunks_mut(MANY)) {
        let mut grids = [[0.0; 2]; MANY];
        let grids = &mut grids[..out.len()];
        kernels.group_extremes(values, len, grids);
        most = most.max(peak(grids.as_flattened()).to_bits());
        for end in grids.as_flattened_mut() {
            // Zeros become positive: of two that differ in sign, any could be the larger one.
            *end = (*end * cells.power).clamp(-MOST, MOST) + 0.0;
        }
        let (blocks, how) = (grids.iter_mut().zip(values.chunks(len)), (cells, codes));
        match (affine.fit, affine.rounding) {
            (AffineFit::Range, Rounding::Nearest) => {
                for (grid, _) in blocks {
                    *grid = codes.cut(*grid);
                }
            }
            (AffineFit::Range, Rounding::Stochastic) => {
                for (grid, _) in blocks {
                    *grid = codes.over(*grid);
                }
            }
            (AffineFit::Zero, _) => {
                for (grid, _) in blocks {
                    *grid = codes.zero(*grid);
                }
            }
            (AffineFit::Sawb, _) => {
                for (grid, values) in blocks {
                    *grid = sawb(kernels, how, *grid, values);
                }
            }
            (AffineFit::Squares, _) => {
                for (grid, values) in blocks {
                    *grid = squares(kernels, how, *grid, values);
                }
            }
        }
        kernels.narrow_f16(grids.as_flattened(), 1.0, out.as_flattened_mut().as_chunks_mut().0);
    }
    most
}

/// What is known of codes of so many bits.
#[derive(Debug, Clone, Copy)]
struct Codes {
    bits: u8,
    /// The highest.
    most: f32,
    /// One over what the factors of a step below are.
    per_cell: f32,
    per_cell_but_half: f32,
    per_step: f32,
    below_zero: f32,
    per_step_below: f32,
    per_step_above: f32,
}

impl Codes {
    fn new(bits: u8) -> Self {
        let most = ((1_u32 << bits) - 1) as f32;
        let below_zero = (1_u32 << (bits - 1)) as f32;
        Self {
            bits,
            most,
            per_cell: 1.0 / (most + 1.0),
            per_cell_but_half: 1.0 / (most + 0.5),
            per_step: 1.0 / most,
            below_zero,
            per_step_below: 1.0 / below_zero,
            per_step_above: 1.0 / (below_zero - 1.0).max(1.0),
        }
    }

    /// Equal cells between two ends, read at their centres. The base is rounded down, and the step then
    /// reaches to the upper end: so a block far from zero is covered, too.
    #[inline(always)]
    fn cut(self, [least, largest]: [f32; 2]) -> Grid {
        let base = down(least + 0.5 * (largest - least) * self.per_cell);
        [near(((largest - base) * self.per_cell_but_half).max(0.0)), base]
    }

    /// Codes from one end to the other, and not less.
    #[inline(always)]
    fn over(self, [least, largest]: [f32; 2]) -> Grid {
        let base = down(least);
        [up((largest - base) * self.per_step), base]
    }

    /// Symmetric, with zero the code in the middle.
    #[inline(always)]
    fn zero(self, [least, largest]: [f32; 2]) -> Grid {
        let step = (-least * self.per_step_below).max(largest * self.per_step_above);
        let step = up(step.max(0.0) + 0.0);
        [step, -self.below_zero * step]
    }

    /// Symmetric, up to a clip.
    fn even(self, clip: f32) -> Grid {
        let step = near(2.0 * clip * self.per_step);
        [step, near(-0.5 * self.most * step)]
    }
}

/// Choi et al., MLSys 2019: `clip = c1 * sqrt(E[w^2]) - c2 * E[|w|]`; from 5 bits on where that is
/// better than the largest magnitude.
fn sawb(
    kernels: &Kernels,
    (cells, codes): (Cells, Codes),
    [least, largest]: [f32; 2],
    values: &[f32],
) -> Grid {
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
    let [first, second] = PAIRS[usize::from(codes.bits - 1)];
    let clip = first * libm::sqrt(summary.mean_square()) - second * summary.mean_magnitude();
    let (clip, most) = ((clip * f64::from(cells.power)) as f32, largest.max(-least) + 0.0);
    let whole = codes.even(most);
    if !(clip > 0.0 && clip < most) {
        return whole;
    }
    let clipped = codes.even(clip);
    if codes.bits < 5 {
        return clipped;
    }
    let mut grids = Grids { steps: [whole[0]; GRIDS], bases: [whole[1]; GRIDS] };
    [grids.steps[0], grids.bases[0]] = clipped;
    best(kernels, cells, &grids, values)
}

/// The best of ranges that shrink to both sides of their centre.
fn squares(
    kernels: &Kernels,
    (cells, codes): (Cells, Codes),
    [least, largest]: [f32; 2],
    values: &[f32],
) -> Grid {
    let mut grids = Grids { steps: [0.0; GRIDS], bases: [0.0; GRIDS] };
    for i in 0..GRIDS {
        let less = 0.5 * SHRINKAGE * i as f32 * (largest - least);
        [grids.steps[i], grids.bases[i]] = codes.cut([least + less, largest - less]);
    }
    best(kernels, cells, &grids, values)
}

/// The first of the grids with the least squared error.
fn best(kernels: &Kernels, cells: Cells, grids: &Grids, values: &[f32]) -> Grid {
    let mut errors = [0.0; GRIDS];
    for values in values.chunks(BLOCK) {
        kernels.cell_errors(values, cells, grids, &mut errors);
    }
    let least = errors.iter().fold(f64::INFINITY, |least, &e| if e < least { e } else { least });
    let best = errors.iter().position(|&error| error == least).unwrap_or(0);
    [grids.steps[best], grids.bases[best]]
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
