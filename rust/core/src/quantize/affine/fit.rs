//! Where the grid of each block lies.
//!
//! All arithmetic is on values times two to the power of the frame's exponent, which bring the largest
//! of them below half of what float16 holds. A grid is found, its numbers are rounded to float16, and only
//! then are codes chosen, or errors compared.

use std::array::from_fn;

use super::{Affine, AffineFit, Rounding};
use crate::quantize::{Summary, peak, power};
use crate::simd::cells::half::{near, up};
use crate::simd::cells::{Cells, GRIDS, Grid};
use crate::simd::{BLOCK, Kernels};

/// Blocks whose grids are found at a time.
const MANY: usize = 32;

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
    let codes = Codes::new(affine.bits);
    // Down to 17 % of the range: slowly first, as the best of them is mostly a long one.
    let shares: [f32; GRIDS] = from_fn(|i| 0.001 * (i as f32 * (12.5 + i as f32)));
    let mut most = 0;
    for (values, out) in values.chunks(MANY.saturating_mul(len)).zip(out.chunks_mut(MANY)) {
        let (mut ends, mut grids) = ([[0.0; 2]; MANY], [[0.0; 2]; MANY]);
        let (ends, grids) = (&mut ends[..out.len()], &mut grids[..out.len()]);
        kernels.group_extremes(values, len, ends);
        most = most.max(peak(ends.as_flattened()).to_bits());
        for end in ends.as_flattened_mut() {
            // Zeros become positive: of two that differ in sign, any could be the larger one.
            *end = (*end * cells.power).clamp(-MOST, MOST) + 0.0;
        }
        let blocks = ends.iter().zip(values.chunks(len)).zip(&mut *grids);
        match (affine.fit, affine.rounding) {
            (AffineFit::Range, Rounding::Nearest) => {
                kernels.cut_ranges(ends, &[0.0], codes.most, grids);
            }
            (AffineFit::Range, Rounding::Stochastic) => {
                kernels.cover_ranges(ends, codes.most, grids);
            }
            (AffineFit::Zero, _) => {
                for ((ends, _), grid) in blocks {
                    *grid = codes.zero(*ends);
                }
            }
            (AffineFit::Sawb, _) => {
                for ((ends, values), grid) in blocks {
                    *grid = sawb(kernels, (cells, codes), *ends, values);
                }
            }
            (AffineFit::Squares, _) => {
                let mut shrunk = [[[0.0; 2]; GRIDS]; MANY];
                let shrunk = &mut shrunk[..out.len()];
                kernels.cut_ranges(ends, &shares, codes.most, shrunk.as_flattened_mut());
                for (((_, values), grid), shrunk) in blocks.zip(shrunk) {
                    *grid = best(kernels, cells, shrunk, values);
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
            per_step: 1.0 / most,
            below_zero,
            per_step_below: 1.0 / below_zero,
            per_step_above: 1.0 / (below_zero - 1.0).max(1.0),
        }
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
    let mut grids = [whole; GRIDS];
    grids[0] = clipped;
    best(kernels, cells, &grids, values)
}

/// The first of the grids with the least squared error.
fn best(kernels: &Kernels, cells: Cells, grids: &[Grid; GRIDS], values: &[f32]) -> Grid {
    let mut errors = [0.0; GRIDS];
    for values in values.chunks(BLOCK) {
        kernels.cell_errors(values, cells, grids, &mut errors);
    }
    let least = errors.iter().fold(f64::INFINITY, |least, &e| if e < least { e } else { least });
    let best = errors.iter().position(|&error| error == least).unwrap_or(0);
    grids[best]
}
