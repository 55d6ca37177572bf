//! Vectors to int8, and exact sums of theirs back to products.
//!
//! A run is up to [`LONGEST`] entries within a block. Its largest magnitude becomes 127, and all its entries
//! are rounded to the nearest multiple of a 127th of that, ties to even: what a run stands for is `step *
//! int8`. A row's product is in sixteen sums again: run `k` adds `sum * (row step * step) + row base *
//! offset` to lane `k % 16`, in float32, where `sum` is that of codes times int8, and `offset` the
//! run's step times the sum of its int8. Both sums are exact: at most `255 * 127 * 64`.

use crate::simd::stamp::stamp;
use crate::simd::{LANES, Pair, peak};

/// Entries of a run at most.
pub(crate) const LONGEST: usize = 64;

/// Added to a small number, it leaves the nearest integer in the lowest bits.
const INTEGER: f32 = 12_582_912.0;

/// The largest magnitude of a run that is lifted before it is divided by: a 127th of it may not be normal.
const SMALL: f32 = 1.0 / (1 << 30) as f32 / (1 << 30) as f32;

/// Rounds a run, with zeros behind it, and gives its step and offset.
#[inline(always)]
fn round_run(x: &[f32], out: &mut [i8]) -> Option<[f32; 2]> {
    let mut run = [0.0; LONGEST];
    run[..x.len()].copy_from_slice(x);
    let peak = run.iter().fold(0, |peak, x| (x.to_bits() & 0x7FFF_FFFF).max(peak));
    if peak >= peak::NON_FINITE {
        return None;
    }
    let peak = f32::from_bits(peak);
    let lift = if peak < SMALL { 1.0 / SMALL } else { 1.0 };
    let factor = if peak > 0.0 { 127.0 / (peak * lift) } else { 0.0 };
    let mut codes = [0_i8; LONGEST];
    let mut sum = 0;
    for (code, x) in codes.iter_mut().zip(&run) {
        let nearest = x * lift * factor + INTEGER;
        *code = (nearest.to_bits() as i32).wrapping_sub(INTEGER.to_bits() as i32) as i8;
        sum += i32::from(*code);
    }
    out.copy_from_slice(&codes[..out.len()]);
    let step = peak * lift / 127.0 / lift;
    Some([step, step * sum as f32])
}

#[inline(always)]
fn round_all(
    x: &[f32],
    block: usize,
    run: usize,
    out: &mut [i8],
    [steps, offsets]: [&mut [f32]; 2],
) -> bool {
    let stride = out.len() / steps.len().max(1);
    let mut scales = steps.iter_mut().zip(offsets).zip(out.chunks_mut(stride.max(1)));
    for run in x.chunks(block).flat_map(|block| block.chunks(run)) {
        let Some(((step, offset), out)) = scales.next() else { return true };
        let Some(scales) = round_run(run, out) else { return false };
        [*step, *offset] = scales;
    }
    true
}

/// Rounds a vector whose blocks are cut into runs, each to as many int8 as any other, and says whether all of it
/// is finite: if not, nothing that was written means anything.
pub(in crate::simd) mod round {
    use super::{round_all, stamp};
    stamp!(
        fn(x: &[f32], block: usize, run: usize, out: &mut [i8], scales: [&mut [f32]; 2]) -> bool
            => round_all
    );
}

/// Vectors of int8.
#[derive(Debug, Clone, Copy)]
pub struct Rounded<'a> {
    /// The runs of the first one, and so on.
    pub codes: &'a [i8],
    /// Bytes from one to the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

/// Fails unless there are codes and int8 for all sums.
pub(super) fn check(codes: &[u8], width: u32, x: Rounded<'_>, run: usize, sums: &[i32]) {
    let Rounded { codes: x, stride, count } = x;
    assert!(matches!(width, 2 | 4 | 8) && matches!(run, 32 | 64), "2, 4, 8 bits; runs of 32, 64");
    let entries = sums.len().checked_div(count).unwrap_or(0) * run;
    assert_eq!(entries / run * count, sums.len(), "as many sums of all vectors");
    assert_eq!(codes.len() * 8, entries * width as usize, "a code for each entry");
    let before = count.saturating_sub(1);
    assert!(count == 0 || x.len() >= before * stride + entries, "as many entries as runs have");
}

#[inline(always)]
fn add_runs(sums: &[i32], row: Pair<'_>, x: Pair<'_>, lanes: &mut [f32; LANES]) {
    let ([steps, bases], [x, offsets]) = (row, x);
    let len = sums.len();
    assert!(
        [steps, bases, x, offsets].iter().all(|scales| scales.len() >= len),
        "scales of all runs"
    );
    let (whole, rest) = sums.as_chunks::<LANES>();
    let mut at = 0;
    for sums in whole {
        // A copy of each sixteen, so that the compiler sees that nothing is written to them.
        let [steps, bases, x, offsets] = [steps, bases, x, offsets].map(|scales| {
            let mut lanes = [0.0; LANES];
            lanes.copy_from_slice(&scales[at..at + LANES]);
            lanes
        });
        let mut next = *lanes;
        for i in 0..LANES {
            next[i] += sums[i] as f32 * (steps[i] * x[i]) + bases[i] * offsets[i];
        }
        *lanes = next;
        at += LANES;
    }
    for (i, sum) in rest.iter().enumerate() {
        let k = at + i;
        lanes[i] += *sum as f32 * (steps[k] * x[k]) + bases[k] * offsets[k];
    }
}

/// Adds the products of runs to lanes, of their sums, the row's steps and bases, and the vector's steps and
/// offsets. The first run belongs to the first lane.
pub(in crate::simd) mod runs {
    use super::{LANES, Pair, add_runs, stamp};
    stamp!(fn(sums: &[i32], row: Pair<'_>, x: Pair<'_>, lanes: &mut [f32; LANES]) => add_runs);
}

#[inline(always)]
fn parted(scales: &[[f32; 2]], steps: &mut [f32], bases: &mut [f32]) {
    for ((step, base), scale) in steps.iter_mut().zip(bases).zip(scales) {
        [*step, *base] = *scale;
    }
}

/// Steps and bases of scales.
pub(in crate::simd) mod part {
    use super::{parted, stamp};
    stamp!(fn(scales: &[[f32; 2]], steps: &mut [f32], bases: &mut [f32]) => parted);
}
