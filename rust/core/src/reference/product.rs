//! Products of packed rows and vectors, one entry at a time.

use crate::simd::{LANES, reduce};

/// The sum of products in float32: each rounded, and added to one of sixteen sums.
pub fn product(row: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, (row, x)) in row.iter().zip(x).enumerate() {
        lanes[i % LANES] += row * x;
    }
    plain(reduce(&lanes))
}

/// The product with a vector of 8 bits, of a row's codes and the step and base of each of its blocks.
///
/// Each block is cut into runs of 64 entries, of which the last may be shorter. A run of the vector
/// becomes whole numbers from -127 to 127, times a step.
pub fn rounded_product(codes: &[u8], scales: &[[f32; 2]], block: usize, x: &[f32]) -> f32 {
    if !x.iter().all(|x| x.is_finite()) {
        return f32::NAN;
    }
    let mut lanes = [0.0; LANES];
    let blocks = codes.chunks(block).zip(x.chunks(block)).zip(scales);
    let runs = blocks.flat_map(|((codes, x), scale)| {
        codes.chunks(64).zip(x.chunks(64)).map(move |(codes, x)| (codes, x, scale))
    });
    for (number, (codes, x, [step, base])) in runs.enumerate() {
        let (x_step, x) = rounded(x);
        let sum: i32 = codes.iter().zip(&x).map(|(code, x)| i32::from(*code) * x).sum();
        let offset = x_step * x.iter().sum::<i32>() as f32;
        lanes[number % LANES] += sum as f32 * (step * x_step) + base * offset;
    }
    plain(reduce(&lanes))
}

/// Two to the power of 60.
const LIFT: f32 = (1_u64 << 60) as f32;

/// A run as whole numbers, and their step.
fn rounded(x: &[f32]) -> (f32, Vec<i32>) {
    let peak = x.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    if peak == 0.0 {
        return (0.0, vec![0; x.len()]);
    }
    // Small numbers are lifted, so that what they are multiplied by is finite.
    let lift = if peak < 1.0 / LIFT { LIFT } else { 1.0 };
    let factor = 127.0 / (peak * lift);
    let whole = x.iter().map(|x| (x * lift * factor).round_ties_even() as i32);
    (peak * lift / 127.0 / lift, whole.collect())
}

/// One NaN for all.
fn plain(sum: f32) -> f32 {
    if sum.is_nan() { f32::NAN } else { sum }
}
