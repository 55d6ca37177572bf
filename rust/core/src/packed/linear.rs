//! Products with vectors, in sixteen sums of float32 a row.

use std::ops::Range;

use super::{Activations, Packed, Reader};
use crate::buffer::Buffer;
use crate::simd::dot::{Rows, Vectors};
use crate::simd::{LANES, Level, in_standard_mode, reduce};
use crate::{Error, Result, allocate};

/// Vectors that a pass over the rows is made for.
pub(super) const MOST: usize = 16;

/// Rows that are multiplied together.
pub(super) const ROWS: usize = 8;

/// Columns that are multiplied together: as many as the memory is read in a row, or so few that several vectors
/// stay in the first-level cache.
const COLUMNS: (usize, usize) = (4096, 512);

/// Bytes for codes or values that do not lie as they are read: of each row of a group.
const BYTES: usize = 2048;

/// Entries that vectors are apart besides those of their own, if these are a multiple of so many.
const APART: (usize, usize) = (256, 128);

/// How rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Codes where they lie.
    Packed,
    /// Codes of other bits, a byte each.
    Bytes,
    /// Values.
    Decoded,
}

impl Packed<'_> {
    /// `out[i, r]` becomes the product of row `r` and vector `i`: each vector has as many entries as the
    /// matrix has columns, `out` its rows for each.
    ///
    /// In float32, the result is that of decoding the row and [`dot`](crate::simd::dot). A vector of
    /// [`Activations::Int8`] that is not finite has products that are all NaN.
    pub fn linear(&self, x: &[f32], activations: Activations, out: &mut [f32]) -> Result<()> {
        let (rows, cols) = (self.rows, self.cols);
        // Of nothing, the sum is zero.
        let count = x.len().checked_div(cols).unwrap_or_else(|| out.len() / rows.max(1));
        if count * cols != x.len() || count * rows != out.len() {
            return Err(Error::argument(format!(
                "x has {} entries and out {}: give vectors of {cols} entries, and {rows} for each",
                x.len(),
                out.len()
            )));
        }
        if cols == 0 {
            out.fill(0.0);
        }
        in_standard_mode(|| {
            for (x, out) in x.chunks(MOST * cols.max(1)).zip(out.chunks_mut(MOST * rows.max(1))) {
                match (activations, self.row_block()) {
                    (Activations::Int8, Some(block)) => self.rounded(x, block, out)?,
                    (_, block) => self.floats(x, block, out)?,
                }
            }
            Ok(())
        })
    }

    fn floats(&self, x: &[f32], block: Option<usize>, out: &mut [f32]) -> Result<()> {
        let (source, block, width) = match block.filter(|block| block.is_multiple_of(LANES)) {
            Some(block) if self.reads_in_place() => (Source::Packed, block, self.bits),
            Some(block) => (Source::Bytes, block, 8),
            None => (Source::Decoded, self.cols.next_multiple_of(LANES), 32),
        };
        let (count, len) = (x.len() / self.cols, self.cols.next_multiple_of(LANES));
        // Where vectors are a power of two apart, they contend for the same lines of the cache.
        let stride = if len.is_multiple_of(APART.0) { len + APART.1 } else { len };
        let mut arranged = Buffer::zeros(stride * count)?;
        for (x, out) in x.chunks(self.cols).zip(arranged.as_mut_slice().chunks_mut(stride)) {
            self.kernels.arrange(x, width, out);
        }
        let vectors = Vectors { x: arranged.as_slice(), stride, len, count };
        self.each_pair(count, out, |rows, out| {
            let mut group = Group::new(self, source, block, width);
            for (i, out) in out.chunks_mut(ROWS * count).enumerate() {
                let start = rows.start + i * ROWS;
                group.multiply(start..start + out.len() / count, vectors, out);
            }
        })
    }

    /// Has the products of rows with `count` vectors written, those of a row together, and puts them where
    /// they belong.
    pub(super) fn each_pair(
        &self,
        count: usize,
        out: &mut [f32],
        work: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) -> Result<()> {
        if count == 1 {
            self.share((self.rows, self.cols), 1, out, &work);
            return Ok(());
        }
        let mut products = allocate::zeros(out.len())?;
        self.share((self.rows, self.cols), count, &mut products, &work);
        for (i, out) in out.chunks_mut(self.rows).enumerate() {
            for (out, row) in out.iter_mut().zip(products.chunks(count)) {
                *out = row[i];
            }
        }
        Ok(())
    }
}

/// Some rows, and memory to read them.
struct Group<'a> {
    packed: &'a Packed<'a>,
    source: Source,
    block: usize,
    width: u32,
    reader: Option<Reader<'a>>,
    scales: [[f32; 2]; ROWS * COLUMNS.0 / LANES],
    bytes: [f32; ROWS * BYTES / size_of::<f32>()],
    lanes: [[f32; LANES]; ROWS * MOST],
}

impl<'a> Group<'a> {
    fn new(packed: &'a Packed<'a>, source: Source, block: usize, width: u32) -> Self {
        Self {
            packed,
            source,
            block,
            width,
            reader: (source == Source::Decoded).then(|| Reader::new(packed)),
            scales: [[0.0; 2]; ROWS * COLUMNS.0 / LANES],
            bytes: [0.0; ROWS * BYTES / size_of::<f32>()],
            lanes: [[0.0; LANES]; ROWS * MOST],
        }
    }

    /// The products of rows and vectors.
    fn multiply(&mut self, rows: Range<usize>, vectors: Vectors<'_>, out: &mut [f32]) {
        self.lanes[..out.len()].fill([0.0; LANES]);
        let mut known = 0..0;
        let mut at = 0;
        while at < vectors.len {
            let len = self.columns(at, vectors);
            let blocks = at / self.block..(at + len).div_ceil(self.block);
            if self.source != Source::Decoded && blocks.end > known.end {
                let most = self.scales.len() / ROWS;
                let all = self.packed.cols / self.block;
                known = blocks.start..all.min(blocks.start + most);
                self.packed.row_scales(rows.clone(), known.clone(), &mut self.scales);
            }
            self.prepare(rows.clone(), at, len);
            let (codes, stride) = match self.source {
                Source::Packed => {
                    let stride = self.packed.cols * self.packed.bits as usize / 8;
                    (&self.packed.codes(rows.clone())[at * self.packed.bits as usize / 8..], stride)
                }
                Source::Bytes | Source::Decoded => {
                    (bytemuck::cast_slice(&self.bytes), len * self.width as usize / 8)
                }
            };
            let scales = &self.scales[blocks.start.saturating_sub(known.start)..];
            let (width, block) = (self.width, self.block);
            let rows = Rows { codes, stride, width, scales, scale_stride: known.len(), block };
            let x = &vectors.x[at..];
            let lanes = &mut self.lanes[..out.len()];
            self.packed.kernels.dot(rows, Vectors { x, len, ..vectors }, lanes);
            at += len;
        }
        for (out, lanes) in out.iter_mut().zip(&self.lanes) {
            *out = plain(reduce(lanes));
        }
    }

    /// How many columns from one on are multiplied together: whole blocks, or some of one.
    fn columns(&self, at: usize, vectors: Vectors<'_>) -> usize {
        // AVX-512 takes two rows or more at a time, which the second-level cache is fast enough for.
        let far = vectors.count == 1 || self.packed.kernels.level() == Level::Avx512;
        let wanted = if far { COLUMNS.0 } else { COLUMNS.1 };
        let most = match self.source {
            Source::Packed => wanted,
            Source::Bytes => wanted.min(BYTES),
            Source::Decoded => wanted.min(BYTES / size_of::<f32>()),
        };
        let whole = most / self.block * self.block;
        let len = if whole > 0 { whole } else { most.min(self.block - at % self.block) };
        len.min(vectors.len - at)
    }
    /// Has so many columns of rows unpacked or decoded, one row after the other.
    fn prepare(&mut self, rows: Range<usize>, at: usize, len: usize) {
        let Packed { kernels, bits, cols, .. } = *self.packed;
        if let Some(reader) = &mut self.reader {
            for (row, out) in rows.zip(self.bytes.chunks_mut(len)) {
                let (values, padding) = out.split_at_mut(len.min(cols - at));
                reader.read(row * cols + at, values);
                padding.fill(0.0);
            }
        } else if self.source == Source::Bytes {
            let (from, width) = (at * bits as usize / 8, len * bits as usize / 8);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.bytes);
            for (row, out) in rows.zip(bytes.chunks_mut(len)) {
                let codes = &self.packed.codes(row..row + 1)[from..];
                kernels.unpack(&codes[..width], bits, out);
            }
        }
    }
}

/// The sum, and of all that are not a number one: which one it is depends on the processor.
pub(super) fn plain(sum: f32) -> f32 {
    if sum.is_nan() { f32::NAN } else { sum }
}
