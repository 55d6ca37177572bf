//! Writes frames from positions and values.

use super::blocks::{Codes, compress};
use super::destination::Destination;
use super::header::{CHECKSUM, HEADER_LEN, Header, VERSION};
use super::read::checksum;
use crate::pack::{self, Coding, IndexCoding, MAX_NUMEL, Pattern};
use crate::quantize::{self, Hints, Quantizer, ValueCoding};
use crate::simd::{Kernels, in_standard_mode};
use crate::sparsify::SparsifierId;
use crate::{Dtype, Error, Result};

/// What a writer decides about its frames, apart from the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// Element type of the tensor that was encoded.
    pub dtype: Dtype,
    /// Which sparsifier chose the entries.
    pub sparsifier: SparsifierId,
    /// How values are coded.
    pub quantizer: Quantizer,
    /// How positions may be coded.
    pub indices: IndexCoding,
    /// What is known of the positions beforehand.
    pub pattern: Pattern,
}

/// Longest frame of at most `count` entries out of `numel`, in bytes.
pub fn max_len(
    quantizer: Quantizer,
    indices: IndexCoding,
    pattern: Pattern,
    numel: u64,
    count: u64,
) -> usize {
    let count = count.min(numel);
    let values = |count| quantizer.coding(numel, 0.0).value_len(numel, count) as usize;
    // The full support takes no index bytes, so that the longest frame may have an entry less.
    let with_indices = |count| pack::max_len(indices, pattern, numel, count) + values(count);
    let sections = with_indices(count).max(with_indices(count.min(numel.saturating_sub(1))));
    HEADER_LEN + sections
}

/// Length of a dense frame, in bytes: exact, but for values that may be put into blocks the most.
pub fn dense_len(quantizer: Quantizer, numel: u64) -> usize {
    HEADER_LEN + quantizer.coding(numel, 0.0).value_len(numel, numel) as usize
}

/// Writes a frame of these entries. Allocates nothing if `out` has the capacity, and values are not put
/// into blocks.
///
/// `indices` are strictly ascending positions below `numel`, as many as values; `None` means every
/// position. Values must be finite. Anything else is [`Error::Argument`] or [`Error::NonFinite`]
/// (its position counted among the values), and leaves `out` unspecified.
pub fn write_into<'o>(
    layout: &Layout,
    numel: u64,
    indices: Option<&[u32]>,
    values: &[f32],
    out: impl Into<Destination<'o>>,
) -> Result<()> {
    write_with(layout, &Hints::default(), numel, indices, values, &mut out.into())
}

/// As [`write_into`], with what the quantizer is told besides the values.
pub fn write_with(
    layout: &Layout,
    hints: &Hints,
    numel: u64,
    indices: Option<&[u32]>,
    values: &[f32],
    out: &mut Destination<'_>,
) -> Result<()> {
    check_arguments(numel, indices, values)?;
    let kernels = Kernels::current();
    in_standard_mode(|| {
        let entries = Entries::new(layout, numel, indices, values);
        entries
            .write(kernels, (layout.quantizer, hints), None, &mut Codes::default(), out)
            .map(|_| ())
    })
}

/// Entries, and how a frame has them. They are known to keep the promises of [`write_into`], as those do
/// that a scan has found finite: to look at them again takes as long as a quarter of the writing.
pub(crate) struct Entries<'a> {
    header: Header,
    /// None of a frame of every position, which is read as one that does not write them down.
    indices: Option<&'a [u32]>,
    values: &'a [f32],
    /// How the values are coded, for their section to be read back.
    pub coding: ValueCoding,
}

impl<'a> Entries<'a> {
    /// Chooses how they are coded.
    pub fn new(layout: &Layout, numel: u64, indices: Option<&'a [u32]>, values: &'a [f32]) -> Self {
        debug_assert!(check_arguments(numel, indices, values).is_ok(), "entries as promised");
        let (coding, index_len) = match indices {
            Some(indices) => pack::choose(layout.indices, layout.pattern, indices, numel),
            None => (Coding::None, 0),
        };
        let indices = indices.filter(|_| coding != Coding::None);
        let peak = if layout.quantizer.needs_peak() { quantize::peak(values) } else { 0.0 };
        let value_coding = layout.quantizer.coding(numel, peak);
        let count = values.len() as u64;
        let header = header(*layout, numel, count, (coding, index_len), value_coding);
        Self { header, indices, values, coding: value_coding }
    }

    /// Writes the frame, unless it has more than `max_len` bytes; its length.
    ///
    /// Of values that may be put into blocks, `codes` becomes the frame without them; else it is empty.
    pub fn write(
        &self,
        kernels: &'static Kernels,
        (quantizer, hints): (Quantizer, &Hints),
        max_len: Option<usize>,
        codes: &mut Codes,
        out: &mut Destination<'_>,
    ) -> Result<usize> {
        codes.frame.clear();
        if self.coding.float().is_some() {
            self.write_codes(kernels, quantizer, hints, &mut (&mut codes.frame).into())?;
            return compress(kernels, codes, self.coding, max_len, out);
        }
        let len = frame_len(&self.header);
        if max_len.is_none_or(|limit| len <= limit) {
            self.write_codes(kernels, quantizer, hints, out)?;
        }
        Ok(len)
    }

    fn write_codes(
        &self,
        kernels: &'static Kernels,
        quantizer: Quantizer,
        hints: &Hints,
        out: &mut Destination<'_>,
    ) -> Result<()> {
        let Self { header, indices, values, coding } = *self;
        seal(header, out, |index_section, value_section| {
            let numel = header.numel;
            pack::encode_into(header.coding, indices.unwrap_or_default(), numel, index_section);
            let (entries, quantizer) = ((numel, indices), (quantizer, coding));
            quantize::encode(kernels, quantizer, hints, entries, values, value_section);
        })
    }
}

/// Writes a dense frame whose value section `fill` writes: for values that are nowhere together. They
/// must be finite, and coded like this.
pub(crate) fn write_dense(
    layout: Layout,
    numel: u64,
    coding: ValueCoding,
    out: &mut Destination<'_>,
    fill: impl FnOnce(&mut [u8]),
) -> Result<()> {
    check_numel(numel)?;
    let header = header(layout, numel, numel, (Coding::None, 0), coding);
    seal(header, out, |_, value_section| fill(value_section))
}

fn header(
    layout: Layout,
    numel: u64,
    count: u64,
    (coding, index_len): (Coding, usize),
    values: ValueCoding,
) -> Header {
    Header {
        version: VERSION,
        dtype: layout.dtype,
        sparsifier: layout.sparsifier,
        quantizer: values.id(),
        coding,
        exponent: values.exponent(),
        numel,
        count,
        index_len: index_len as u64,
        value_len: values.value_len(numel, count),
        checksum: 0,
    }
}

/// Bytes of a frame with this header.
pub(super) fn frame_len(header: &Header) -> usize {
    HEADER_LEN + header.index_len as usize + header.value_len as usize
}

/// Lays out a frame in `out`, has its sections filled, and puts the checksum in.
/// Where there is no memory for it, nothing was filled.
pub(super) fn seal(
    header: Header,
    out: &mut Destination<'_>,
    fill: impl FnOnce(&mut [u8], &mut [u8]),
) -> Result<()> {
    let frame = out.place(frame_len(&header))?;
    let (head, sections) = frame.split_at_mut(HEADER_LEN);
    let (index_section, value_section) = sections.split_at_mut(header.index_len as usize);
    fill(index_section, value_section);
    head.copy_from_slice(&header.to_bytes());
    let sum = checksum(frame);
    frame[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

fn check_numel(numel: u64) -> Result<()> {
    if numel > MAX_NUMEL {
        return Err(Error::argument(format!(
            "a frame has at most {MAX_NUMEL} elements, got {numel}"
        )));
    }
    Ok(())
}

/// The promises of [`write_into`]'s caller.
fn check_arguments(numel: u64, indices: Option<&[u32]>, values: &[f32]) -> Result<()> {
    check_numel(numel)?;
    let count = indices.map_or(numel, |indices| indices.len() as u64);
    if values.len() as u64 != count {
        return Err(Error::argument(format!("{} values for {count} positions", values.len())));
    }
    if let Some(indices) = indices {
        let ascending = indices.is_sorted_by(|a, b| a < b);
        let last = indices.last().copied().map_or(0, |last| u64::from(last) + 1);
        if !ascending || last > numel {
            return Err(Error::argument(format!(
                "positions must ascend strictly and be below {numel}"
            )));
        }
    }
    let finite = values.iter().fold(true, |all, value| all & value.is_finite());
    if !finite {
        let bad = || values.iter().enumerate().filter(|(_, value)| !value.is_finite());
        let first = bad().next().map_or(0, |(at, _)| at as u64);
        return Err(Error::NonFinite { count: bad().count() as u64, first });
    }
    Ok(())
}
