//! Packed weights: the rows of a matrix that lies in a frame of an affine grid, decoded or multiplied as they
//! lie.
//!
//! [`Packed`] reads a dense frame of [`Affine`](crate::quantize::Affine) codes as rows of so many columns. Rows
//! are shared between the threads of the [`pool`]; no result depends on how many there are. Where
//! blocks begin on a multiple of sixteen entries, [`dot`](crate::simd::dot) reads the codes, otherwise
//! the frame's decoder does.

mod chosen;
mod error;
mod linear;
mod nested;
mod rounded;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use chosen::Chosen;
use half::{bf16, f16};

use crate::frame::{Destination, Frame, Layout, write_dense};
use crate::pack::{Coding, IndexCoding, Pattern};
use crate::quantize::{Decoder, LONGEST, Quantizer, Section, SectionMut, ValueCoding};
use crate::simd::dot::Rows;
use crate::simd::{Kernels, LANES, in_standard_mode};
use crate::sparsify::SparsifierId;
use crate::{Dtype, Error, Result, pool};

/// Entries that are worth a thread.
const GRAIN: usize = 1 << 18;

/// Codes that begin and end on a byte, whatever their bits are.
const GROUP: usize = 8;

/// The matrix in a frame.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    frame: Frame<'a>,
    kernels: &'static Kernels,
    section: Section<'a>,
    bits: u32,
    /// Entries that share a step and a base: at most all.
    block: usize,
    /// What steps and bases are multiplied by.
    unit: f32,
    rows: usize,
    cols: usize,
    /// How many share the rows; none: as many as these are worth.
    threads: Option<usize>,
}

/// What a vector is multiplied as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// As it is.
    Float32,
    /// Rounded to 8 bits, in runs of up to 64 entries within a block.
    Int8,
}

/// Where values go.
#[derive(Debug)]
pub enum Output<'a> {
    /// As they are.
    F32(&'a mut [f32]),
    /// Rounded to nearest, ties to even.
    BF16(&'a mut [bf16]),
}

impl<'a> Packed<'a> {
    /// The matrix of this shape in a frame whose checksum is known to hold.
    pub fn new(frame: Frame<'a>, rows: usize, cols: usize) -> Result<Self> {
        let numel = frame.header().numel;
        let coding = match frame.value_coding() {
            _ if frame.header().coding != Coding::None => None,
            ValueCoding::Affine(coding) => Some(coding.grid()),
            ValueCoding::Empty(id) if id.name() == Some("affine") => Some((1, 1, 1.0)),
            _ => None,
        };
        let Some((bits, block, unit)) = coding else {
            return Err(Error::argument(
                "the frame holds no packed weights: give a dense frame of Affine",
            ));
        };
        if (rows as u64).checked_mul(cols as u64) != Some(numel) {
            return Err(Error::argument(format!(
                "the frame has {numel} entries, not {rows} rows of {cols}"
            )));
        }
        let block = (block as usize).min((numel as usize).max(1));
        let (kernels, section) = (Kernels::current(), frame.section_of_codes());
        Ok(Self {
            frame,
            kernels,
            section,
            bits: u32::from(bits),
            block,
            unit,
            rows,
            cols,
            threads: None,
        })
    }

    /// The entries in bytes from anywhere, as one row. All is checked: lengths, checksum, steps and bases.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let frame = Frame::parse(bytes, None)?;
        let packed = Self::new(frame, 1, frame.header().numel as usize)
            .map_err(|_| Error::corrupt("it holds no packed tensor"))?;
        frame.checked(&mut Vec::new())?;
        Ok(packed)
    }

    /// Entries of the tensor.
    pub fn numel(&self) -> u64 {
        self.frame.header().numel
    }

    /// The same of as many rows as there are.
    pub fn of_columns(frame: Frame<'a>, cols: usize) -> Result<Self> {
        let rows = (frame.header().numel as usize).checked_div(cols).unwrap_or(0);
        Self::new(frame, rows, cols)
    }

    /// The same, by these kernels instead of [`Kernels::current`], on so many threads.
    #[must_use]
    pub fn with(self, kernels: &'static Kernels, threads: usize) -> Self {
        Self { kernels, frame: self.frame.with(kernels), threads: Some(threads), ..self }
    }

    /// A frame like this one, of so many bits: see [`write()`].
    fn rewrite(
        &self,
        bits: u32,
        grids: impl Iterator<Item = [f16; 2]>,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<Vec<u8>> {
        let coding = match self.frame.value_coding() {
            ValueCoding::Affine(coding) => ValueCoding::from(coding.with_bits(bits)),
            other => other,
        };
        let header = self.frame.header();
        let from = (header.dtype, header.sparsifier);
        write(self.kernels, from, self.rows * self.cols, coding, grids, fill)
    }

    /// Writes the values of `count` rows from `start` on.
    pub fn decode(&self, start: usize, count: usize, out: Output<'_>) -> Result<()> {
        let rows = self.rows;
        if start > rows || count > rows - start {
            return Err(Error::argument(format!(
                "rows {start} to {} are not in a matrix of {rows} rows",
                start.saturating_add(count)
            )));
        }
        self.check_len(count, &out)?;
        self.read(LONGEST, &|i| start * self.cols + i * LONGEST, out);
        Ok(())
    }

    /// Writes the values of these rows, one after the other. Nothing is written if one is not there.
    pub fn take(&self, indices: &[i64], out: Output<'_>) -> Result<()> {
        let is_there = |index: i64| usize::try_from(index).is_ok_and(|index| index < self.rows);
        if let Some(&index) = indices.iter().find(|index| !is_there(**index)) {
            return Err(Error::NoRow { index, rows: self.rows as u64 });
        }
        self.check_len(indices.len(), &out)?;
        self.read(self.cols, &|i| indices[i] as usize * self.cols, out);
        Ok(())
    }

    /// Fails unless there is room for so many rows, no more and no less.
    fn check_len(&self, count: usize, out: &Output<'_>) -> Result<()> {
        let (len, cols) = (out.len(), self.cols);
        if count.checked_mul(cols) == Some(len) {
            return Ok(());
        }
        Err(Error::argument(format!("out has {len} elements, not {count} rows of {cols}")))
    }

    /// Writes spans of values, `len` each but for the last, which begin where `first` says.
    fn read(&self, len: usize, first: &(impl Fn(usize) -> usize + Sync), out: Output<'_>) {
        let (len, all) = (len.max(1), out.len());
        let count = all.div_ceil(len);
        in_standard_mode(|| match out {
            Output::F32(out) => self.share((count, len), len, out, &|spans, out| {
                let mut reader = Reader::new(self);
                for (span, out) in spans.zip(out.chunks_mut(len)) {
                    reader.read(first(span), out);
                }
            }),
            Output::BF16(out) => self.share((count, len), len, out, &|spans, out| {
                let (mut reader, mut values) = (Reader::new(self), [0.0; LONGEST]);
                for (span, out) in spans.zip(out.chunks_mut(len)) {
                    for (i, out) in out.chunks_mut(LONGEST).enumerate() {
                        let values = &mut values[..out.len()];
                        reader.read(first(span) + i * LONGEST, values);
                        self.kernels.narrow_bf16(values, bytemuck::cast_slice_mut(out));
                    }
                }
            }),
        });
    }

    /// Shares pieces of so many entries between threads: `work` gets some, and `each` elements of `out` for
    /// every one but the last, which may have fewer.
    fn share<T: Send>(
        &self,
        (count, entries): (usize, usize),
        each: usize,
        out: &mut [T],
        work: &(impl Fn(Range<usize>, &mut [T]) + Sync),
    ) {
        let worth = count.saturating_mul(entries) / GRAIN;
        let wanted = self
            .threads
            .unwrap_or_else(|| if worth < 2 { 1 } else { pool::num_threads().min(worth) });
        pool::share(wanted, count, each, out, work);
    }

    /// Entries of a row under one step and base, if rows and blocks begin together or rows lie within one.
    fn row_block(&self) -> Option<usize> {
        let Self { block, cols, .. } = *self;
        let fits = cols > 0 && (cols.is_multiple_of(block) || block.is_multiple_of(cols));
        let begins_a_byte = (cols * self.bits as usize).is_multiple_of(8);
        (fits && (begins_a_byte || self.rows == 1)).then(|| block.min(cols))
    }

    /// Steps and bases of some blocks of rows, if rows have [`Packed::row_block`]: those of the first row, and
    /// so on. Those of the rows behind them are brought to the caches.
    fn row_scales(&self, rows: Range<usize>, blocks: Range<usize>, out: &mut [[f32; 2]]) {
        let all = &self.section.scales;
        let at = |row: usize| row * self.cols / self.block;
        // The same as row by row, but faster.
        if blocks.len() * self.block == self.cols {
            let (first, last) = (at(rows.start), at(rows.end));
            self.widen(&all[first..last], &mut out[..last - first]);
            self.kernels.fetch(all[last..all.len().min(2 * last - first)].as_flattened());
            return;
        }
        for (row, out) in rows.zip(out.chunks_mut(blocks.len())) {
            let first = at(row) + blocks.start;
            self.widen(&all[first..first + blocks.len()], out);
        }
    }

    fn widen(&self, words: &[[u8; 4]], out: &mut [[f32; 2]]) {
        let halves = words.as_flattened().as_chunks().0;
        self.kernels.decode_f16(halves, self.unit, out.as_flattened_mut());
    }

    /// The packed codes of some rows that begin on a byte.
    fn codes(&self, rows: Range<usize>) -> &'a [u8] {
        let bits = self.bits as usize;
        let at = |row: usize| (row * self.cols * bits).div_ceil(8);
        &self.section.codes[at(rows.start)..at(rows.end)]
    }

    /// Whether codes are read where they lie.
    fn reads_in_place(&self) -> bool {
        matches!(self.bits, 2 | 4 | 8)
    }
}

impl Output<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(out) => out.len(),
            Self::BF16(out) => out.len(),
        }
    }
}

/// Decodes values from anywhere.
struct Reader<'a> {
    packed: &'a Packed<'a>,
    /// For what does not begin on a multiple of sixteen.
    decoder: Decoder<'a>,
    scales: [[f32; 2]; LONGEST / LANES + 1],
    codes: [u8; LONGEST],
}

impl<'a> Reader<'a> {
    fn new(packed: &'a Packed<'a>) -> Self {
        let decoder = packed.frame.decoder(packed.section);
        Self { packed, decoder, scales: [[0.0; 2]; LONGEST / LANES + 1], codes: [0; LONGEST] }
    }

    /// The values from entry `first` on.
    fn read(&mut self, first: usize, out: &mut [f32]) {
        let Packed { kernels, section, bits, block, .. } = *self.packed;
        let aligned = first.is_multiple_of(LANES) && block.is_multiple_of(LANES);
        let whole = if aligned { out.len() - out.len() % LANES } else { 0 };
        let (out, rest) = out.split_at_mut(whole);
        for (i, out) in out.chunks_mut(LONGEST).enumerate() {
            let first = first + i * LONGEST;
            let (from, skip) = (first / block, first % block);
            let words = &section.scales[from..=(first + out.len() - 1) / block];
            let scales = &mut self.scales[..words.len()];
            self.packed.widen(words, scales);
            let bytes =
                &section.codes[first * bits as usize / 8..][..out.len() * bits as usize / 8];
            let (codes, width) = if self.packed.reads_in_place() {
                (bytes, bits)
            } else {
                let codes = &mut self.codes[..out.len()];
                kernels.unpack(bytes, bits, codes);
                (&*codes, 8)
            };
            let (stride, scale_stride) = (codes.len(), scales.len());
            let row = Rows { codes, stride, width, scales, scale_stride, block };
            kernels.decode_codes(row, skip, out);
        }
        if !rest.is_empty() {
            self.read_rest(first + whole, rest);
        }
    }

    fn read_rest(&mut self, first: usize, out: &mut [f32]) {
        let before = first % GROUP;
        let head = if before == 0 { 0 } else { out.len().min(GROUP - before) };
        let (out, rest) = out.split_at_mut(head);
        if head > 0 {
            let mut values = [0.0; GROUP];
            self.decoder.decode(first - before, None, &mut values[..before + head]);
            out.copy_from_slice(&values[before..before + head]);
        }
        self.decoder.decode(first + head, None, rest);
    }
}

/// A dense frame of `count` codes with these steps and bases. `fill` writes the codes from an entry on that is
/// a multiple of [`LONGEST`], one a byte.
fn write(
    kernels: &Kernels,
    (dtype, sparsifier): (Dtype, SparsifierId),
    count: usize,
    coding: ValueCoding,
    grids: impl Iterator<Item = [f16; 2]>,
    mut fill: impl FnMut(usize, &mut [u8]),
) -> Result<Vec<u8>> {
    let bits = match coding {
        ValueCoding::Affine(coding) => u32::from(coding.grid().0),
        _ => 1,
    };
    let layout = Layout {
        dtype,
        sparsifier,
        quantizer: Quantizer::Float32, // The coding says it.
        indices: IndexCoding::Auto,
        pattern: Pattern::Any,
    };
    let (numel, mut out) = (count as u64, Vec::new());
    write_dense(layout, numel, coding, &mut Destination::from(&mut out), |section| {
        let SectionMut { scales, codes } = coding.begin(numel, numel, section);
        for (word, grid) in scales.iter_mut().zip(grids) {
            let [a, b] = grid.map(f16::to_le_bytes);
            *word = [a[0], a[1], b[0], b[1]];
        }
        let mut chunk = [0; LONGEST];
        for (i, out) in codes.chunks_mut(LONGEST / 8 * bits as usize).enumerate() {
            let chunk = &mut chunk[..(count - i * LONGEST).min(LONGEST)];
            fill(i * LONGEST, chunk);
            if bits == 8 {
                out.copy_from_slice(chunk);
            } else {
                kernels.pack(chunk, bits, out);
            }
        }
    })?;
    Ok(out)
}
