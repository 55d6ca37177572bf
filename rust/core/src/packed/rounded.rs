//! Products with vectors of 8 bits: exact sums, run by run.

use std::ops::Range;

use super::linear::{MOST, ROWS, plain};
use super::{GROUP, Packed};
use crate::buffer::Buffer;
use crate::simd::dot::{LONGEST_RUN, Rounded};
use crate::simd::{LANES, reduce};
use crate::{Result, allocate};

/// How a row of packed codes is cut into runs.
#[derive(Debug, Clone, Copy)]
struct Runs {
    /// Entries of a block, within the row.
    block: usize,
    /// Entries of a run, but for the last of a block.
    len: usize,
    /// Bytes that a run takes as one code, or int8, a byte.
    stride: usize,
    /// Runs of a block, and of a row.
    of_block: usize,
    of_row: usize,
}

impl Runs {
    fn new(block: usize, cols: usize) -> Self {
        let len = block.min(LONGEST_RUN);
        let stride = if len > LONGEST_RUN / 2 { LONGEST_RUN } else { LONGEST_RUN / 2 };
        let of_block = block.div_ceil(len);
        Self { block, len, stride, of_block, of_row: cols / block * of_block }
    }

    /// Entries of a row that a run has.
    fn entries(self, run: usize) -> Range<usize> {
        let (block, within) = (run / self.of_block * self.block, run % self.of_block * self.len);
        block + within..block + self.block.min(within + self.len)
    }

    /// Whether runs follow one another without gaps.
    fn are_whole(self) -> bool {
        self.len == self.stride && self.block.is_multiple_of(self.len)
    }
}

/// Vectors of 8 bits.
struct Vectors {
    codes: Buffer<i8>,
    steps: Vec<f32>,
    offsets: Vec<f32>,
    finite: Vec<bool>,
}

/// Runs that are multiplied together, a multiple of sixteen: by one vector as many as the memory is read in a
/// row, by several so many that they stay in the first-level cache.
const RUNS: (usize, usize) = (128, 32);

/// Some runs of a row.
struct Row {
    scales: [[f32; 2]; RUNS.0],
    steps: [f32; RUNS.0],
    bases: [f32; RUNS.0],
    bytes: [u8; RUNS.0 * LONGEST_RUN + GROUP],
    padded: [u8; RUNS.0 * LONGEST_RUN],
}

impl Packed<'_> {
    /// As [`Packed::linear`], where rows have blocks of so many entries.
    pub(super) fn rounded(&self, x: &[f32], block: usize, out: &mut [f32]) -> Result<()> {
        let runs = Runs::new(block, self.cols);
        let vectors = self.round(x, runs)?;
        let count = vectors.finite.len();
        self.each_pair(count, out, |rows, out| self.rounded_rows(&vectors, runs, rows, out))
    }

    fn round(&self, x: &[f32], runs: Runs) -> Result<Vectors> {
        let (count, row) = (x.len() / self.cols, runs.of_row);
        let mut codes = Buffer::zeros(count * row * runs.stride)?;
        let (mut steps, mut offsets) =
            (allocate::zeros(count * row)?, allocate::zeros(count * row)?);
        let scales = steps.chunks_mut(row).zip(offsets.chunks_mut(row));
        let vectors =
            x.chunks(self.cols).zip(codes.as_mut_slice().chunks_mut(row * runs.stride)).zip(scales);
        let finite = vectors
            .map(|((x, codes), (steps, offsets))| {
                self.kernels.round_runs(x, runs.block, runs.len, codes, [steps, offsets])
            })
            .collect();
        Ok(Vectors { codes, steps, offsets, finite })
    }

    fn rounded_rows(&self, vectors: &Vectors, runs: Runs, rows: Range<usize>, out: &mut [f32]) {
        let Vectors { codes: x, steps, offsets, finite } = vectors;
        let (count, each) = (finite.len(), runs.of_row);
        let (mut row, mut sums) = (Row::new(), [0; RUNS.1 * MOST]);
        let together = if count == 1 { RUNS.0 } else { RUNS.1 };
        let mut lanes = [[0.0; LANES]; ROWS * MOST];
        for (i, out) in out.chunks_mut(ROWS * count).enumerate() {
            let lanes = &mut lanes[..out.len()];
            lanes.fill([0.0; LANES]);
            for first in (0..each).step_by(together) {
                let some = first..each.min(first + together);
                let (codes, stride) = (&x.as_slice()[first * runs.stride..], each * runs.stride);
                let x = Rounded { codes, stride, count };
                let sums = &mut sums[..count * some.len()];
                for (number, lanes) in (rows.start + i * ROWS..).zip(lanes.chunks_mut(count)) {
                    row.read_scales(self, runs, number, some.clone());
                    let (codes, width) = row.codes(self, runs, number, some.clone());
                    self.kernels.dot_sums(codes, width, x, runs.stride, sums);
                    for (m, (sums, lanes)) in sums.chunks(some.len()).zip(lanes).enumerate() {
                        let of = m * each + some.start..m * each + some.end;
                        let (row, x) =
                            ([&row.steps[..], &row.bases], [&steps[of.clone()], &offsets[of]]);
                        self.kernels.dot_runs(sums, row, x, lanes);
                    }
                }
            }
            for ((out, lanes), finite) in out.iter_mut().zip(&*lanes).zip(finite.iter().cycle()) {
                *out = if *finite { plain(reduce(lanes)) } else { f32::NAN };
            }
        }
    }
}

impl Row {
    fn new() -> Self {
        Self {
            scales: [[0.0; 2]; RUNS.0],
            steps: [0.0; RUNS.0],
            bases: [0.0; RUNS.0],
            bytes: [0; RUNS.0 * LONGEST_RUN + GROUP],
            padded: [0; RUNS.0 * LONGEST_RUN],
        }
    }

    /// Steps and bases of some runs.
    fn read_scales(&mut self, packed: &Packed<'_>, runs: Runs, row: usize, some: Range<usize>) {
        let each = runs.of_block;
        let blocks = some.start / each..some.end.div_ceil(each);
        let scales = &mut self.scales[..blocks.len()];
        packed.row_scales(row..row + 1, blocks.clone(), scales);
        if each == 1 {
            return packed.kernels.part_scales(scales, &mut self.steps, &mut self.bases);
        }
        for ((run, step), base) in some.zip(&mut self.steps).zip(&mut self.bases) {
            [*step, *base] = scales[run / each - blocks.start];
        }
    }

    /// The codes of some runs, and their bits.
    fn codes<'s>(
        &'s mut self,
        packed: &'s Packed<'_>,
        runs: Runs,
        row: usize,
        some: Range<usize>,
    ) -> (&'s [u8], u32) {
        let (codes, bits) = (packed.codes(row..row + 1), packed.bits as usize);
        let entries = runs.entries(some.start).start..runs.entries(some.end - 1).end;
        if runs.are_whole() && packed.reads_in_place() {
            return (&codes[entries.start * bits / 8..entries.end * bits / 8], packed.bits);
        }
        // From a whole byte on, whatever the bits are.
        let from = entries.start - entries.start % GROUP;
        let bytes = &mut self.bytes[..entries.end - from];
        let codes = &codes[from * bits / 8..(entries.end * bits).div_ceil(8)];
        packed.kernels.unpack(codes, packed.bits, bytes);
        if runs.are_whole() {
            return (&bytes[entries.start - from..], 8);
        }
        // Zeros behind short runs: the vector has them, too.
        let padded = &mut self.padded[..some.len() * runs.stride];
        for (run, padded) in some.zip(padded.chunks_mut(runs.stride)) {
            let entries = runs.entries(run);
            let (codes, padding) = padded.split_at_mut(entries.len());
            codes.copy_from_slice(&bytes[entries.start - from..entries.end - from]);
            padding.fill(0);
        }
        (padded, 8)
    }
}
