//! Writes frames from positions and values.

use super::header::{CHECKSUM, HEADER_LEN, Header, VERSION};
use super::read::checksum;
use crate::pack::{self, Coding, IndexCoding, MAX_NUMEL, Pattern};
use crate::quantize::{self, Hints, Quantizer, ValueCoding};
use crate::simd::{Kernels, in_standard_mode};
use crate::sparsify::SparsifierId;
use crate::{Dtype, Error, Result, room};

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

/// Exact length of a dense frame, in bytes.
pub fn dense_len(quantizer: Quantizer, numel: u64) -> usize {
    HEADER_LEN + quantizer.coding(numel, 0.0).value_len(numel, numel) as usize
}

/// Writes a frame of these entries, in place of what `out` held. Allocates nothing if `out` has
/// the capacity.
///
/// `indices` are strictly ascending positions below `numel`, as many as values; `None` means every
/// position. Values must be finite. Anything else is [`Error::Argument`] or [`Error::NonFinite`]
/// (its position counted among the values), and leaves `out` unspecified.
pub fn write_into(
    layout: &Layout,
    numel: u64,
    indices: Option<&[u32]>,
    values: &[f32],
    out: &mut Vec<u8>,
) -> Result<()> {
    write_with(layout, &Hints::default(), numel, indices, values, out).map(|_| ())
}

/// As [`write_into`], with what the quantizer is told besides the values. Gives how those were
/// coded, for their section to be read back.
pub fn write_with(
    layout: &Layout,
    hints: &Hints,
    numel: u64,
    indices: Option<&[u32]>,
    values: &[f32],
    out: &mut Vec<u8>,
) -> Result<ValueCoding> {
    check_arguments(numel, indices, values)?;
    let kernels = Kernels::current();
    in_standard_mode(|| write_checked(kernels, layout, hints, numel, indices, values, out))
}

/// As [`write_with`] for entries that are known to keep its promises: survivors of a scan that found
/// all finite do, and looking at them again takes as long as a quarter of the writing.
pub(crate) fn write_checked(
    kernels: &'static Kernels,
    layout: &Layout,
    hints: &Hints,
    numel: u64,
    indices: Option<&[u32]>,
    values: &[f32],
    out: &mut Vec<u8>,
) -> Result<ValueCoding> {
    debug_assert!(check_arguments(numel, indices, values).is_ok(), "entries as promised");
    let (coding, index_len) = match indices {
        Some(indices) => pack::choose(layout.indices, layout.pattern, indices, numel),
        None => (Coding::None, 0),
    };
    // A frame of every position is read as one that does not write them down.
    let indices = indices.filter(|_| coding != Coding::None);
    let peak = if layout.quantizer.needs_peak() { quantize::peak(values) } else { 0.0 };
    let value_coding = layout.quantizer.coding(numel, peak);
    let header = header(*layout, numel, values.len() as u64, (coding, index_len), value_coding);
    seal(header, out, |index_section, value_section| {
        pack::encode_into(coding, indices.unwrap_or_default(), numel, index_section);
        let entries = (numel, indices);
        let quantizer = (layout.quantizer, value_coding);
        quantize::encode(kernels, quantizer, hints, entries, values, value_section);
    })?;
    Ok(value_coding)
}

/// Writes a dense frame whose value section `fill` writes, in place of what `out` held: for values
/// that are nowhere together. They must be finite, and coded like this.
pub(crate) fn write_dense(
    layout: Layout,
    numel: u64,
    coding: ValueCoding,
    out: &mut Vec<u8>,
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

/// Lays out a frame in `out`, has its sections filled, and puts the checksum in.
/// Where there is no memory for it, nothing was filled.
pub(super) fn seal(
    header: Header,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8], &mut [u8]),
) -> Result<()> {
    let (index_len, value_len) = (header.index_len as usize, header.value_len as usize);
    let len = HEADER_LEN + index_len + value_len;
    if out.capacity() < len {
        // New pages are zeros already; the old ones go first.
        *out = Vec::new();
        *out = room::zeros(len)?;
    }
    // Not cleared first: a buffer used again is not filled with zeros again.
    out.resize(len, 0);
    let (head, sections) = out.split_at_mut(HEADER_LEN);
    let (index_section, value_section) = sections.split_at_mut(index_len);
    fill(index_section, value_section);
    head.copy_from_slice(&header.to_bytes());
    let sum = checksum(out);
    out[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
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
