//! Cuts a frame by position into frames of their own, without decoding a value.
//!
//! Positions are read and coded anew, relative to where each part begins. Values are copied as the
//! codes that they are, and so are the scales of their groups. A group of entries that share scales
//! must begin where a frame begins: so a range that begins within such a group is cut once more, where
//! the next group begins. The parts of all ranges, one after another, are the whole tensor.

use std::ops::Range;

use super::blocks::{Codes, compress};
use super::destination::Destination;
use super::header::Header;
use super::read::{Frame, section_end};
use super::write::{frame_len, seal};
use crate::pack::{self, Coding, IndexCoding, Pattern};
use crate::quantize::{Grouping, Section, ValueCoding};
use crate::simd::{Kernels, in_standard_mode};
use crate::{Error, Result};

/// How a frame is cut: the memory for it, to be used again.
#[derive(Debug, Clone, Default)]
pub struct Split {
    /// Positions of all entries, each relative to its part; none of a dense frame.
    positions: Vec<u32>,
    parts: Vec<Part>,
    /// The value section, if its codes are in blocks, and the parts of it, which are known once written.
    codes: Vec<u8>,
    written: Vec<u8>,
}

impl Split {
    /// The parts, in the order of their positions.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Bytes that are held to be used again.
    pub fn bytes(&self) -> usize {
        let bytes = self.codes.capacity() + self.written.capacity();
        let parts = size_of::<Part>() * self.parts.capacity();
        size_of::<u32>() * self.positions.capacity() + parts + bytes
    }
}

/// A part of a frame that [`Frame::split`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which of the ranges it belongs to.
    pub range: usize,
    /// The first of its positions in the tensor.
    pub start: u64,
    header: Header,
    ranks: Range<usize>,
    /// Where the frame is written already.
    written: Option<Range<usize>>,
}

impl Part {
    /// Elements of the tensor that it covers.
    pub fn numel(&self) -> u64 {
        self.header.numel
    }

    /// Entries in it.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// Bytes of its frame.
    pub fn nbytes(&self) -> usize {
        self.written.as_ref().map_or_else(|| frame_len(&self.header), Range::len)
    }
}

/// Entries of a part: where they are, and which they are.
struct Cut {
    positions: Range<u64>,
    ranks: Range<usize>,
}

impl Frame<'_> {
    /// Cuts at `bounds`, and says in `split` which parts there are.
    ///
    /// `bounds` ascend from 0 to `numel`; a range without elements has no part. A range has one part,
    /// or two where it begins within a group of entries that share scales. Every part decodes to what
    /// the whole decodes to in its range.
    ///
    /// What decoding would refuse is refused here. Takes 4 bytes per entry. After an error `split` is
    /// unspecified.
    pub fn split(&self, bounds: &[u64], split: &mut Split) -> Result<()> {
        let Split { positions, parts, codes, written } = split;
        parts.clear();
        positions.clear();
        written.clear();
        check_bounds(bounds, self.header().numel)?;
        let (section, mut plain) = (in_standard_mode(|| self.checked(codes))?, Codes::default());
        let is_dense = self.header().coding == Coding::None;
        if !is_dense {
            self.indices_into(positions)?;
        }
        let mut first = 0;
        for (range, pair) in bounds.windows(2).enumerate() {
            let end = if is_dense {
                pair[1] as usize
            } else {
                first + positions[first..].partition_point(|&p| u64::from(p) < pair[1])
            };
            let whole = Cut { positions: pair[0]..pair[1], ranks: first..end };
            first = end;
            for Cut { positions: Range { start, end }, ranks } in
                self.at_groups(whole, positions).into_iter().flatten()
            {
                let local = positions.get_mut(ranks.clone()).unwrap_or_default();
                for position in &mut *local {
                    *position -= start as u32;
                }
                let header =
                    self.part_header(end - start, &ranks, (!is_dense).then_some(&mut *local));
                let mut part = Part { range, start, header, ranks, written: None };
                let coding = self.value_coding();
                if coding.float().is_some() {
                    let at = written.len();
                    self.write_codes(section, &part, local, &mut (&mut plain.frame).into())?;
                    let mut out = Destination::behind(written, at);
                    let len = compress(Kernels::current(), &mut plain, coding, None, &mut out)?;
                    part.written = Some(at..at + len);
                }
                parts.push(part);
            }
        }
        Ok(())
    }

    /// A range, cut where a group of entries begins if it begins within another.
    fn at_groups(&self, cut: Cut, positions: &[u32]) -> [Option<Cut>; 2] {
        let Cut { positions: Range { start: from, end: to }, ranks } = cut;
        if from == to {
            return [None, None];
        }
        let at = match self.value_coding().grouping() {
            Grouping::None | Grouping::Whole => None,
            Grouping::Ranks(len) => {
                let next = ranks.start.next_multiple_of(len as usize);
                let position = || match positions.get(next) {
                    Some(&position) => u64::from(position),
                    None => next as u64,
                };
                (ranks.start < next && next < ranks.end).then(|| (position(), next))
            }
            Grouping::Positions(len) => {
                let next = from.next_multiple_of(u64::from(len));
                let rank = || match self.header().coding {
                    Coding::None => next as usize,
                    _ => positions.partition_point(|&p| u64::from(p) < next),
                };
                (from < next && next < to).then(|| (next, rank()))
            }
        };
        let Some((position, rank)) = at else {
            return [Some(Cut { positions: from..to, ranks }), None];
        };
        [
            Some(Cut { positions: from..position, ranks: ranks.start..rank }),
            Some(Cut { positions: position..to, ranks: rank..ranks.end }),
        ]
    }

    /// The header of a part with these entries, whose positions in it are given unless it is dense.
    fn part_header(&self, numel: u64, ranks: &Range<usize>, local: Option<&mut [u32]>) -> Header {
        let (whole, count) = (*self.header(), ranks.len() as u64);
        let (coding, index_len) = match local {
            Some(local) => pack::choose(IndexCoding::Auto, Pattern::Any, local, numel),
            None => (Coding::None, 0),
        };
        Header {
            coding,
            exponent: if count == 0 { 0 } else { whole.exponent },
            numel,
            count,
            index_len: index_len as u64,
            value_len: self.value_coding().value_len(numel, count),
            checksum: 0,
            ..whole
        }
    }

    /// Writes the frame of a part that [`Frame::split`] has found of this frame.
    pub fn write_part<'o>(
        &self,
        split: &Split,
        part: &Part,
        out: impl Into<Destination<'o>>,
    ) -> Result<()> {
        let out = &mut out.into();
        if let Some(written) = part.written.clone().and_then(|range| split.written.get(range)) {
            out.place(written.len())?.copy_from_slice(written);
            return Ok(());
        }
        let local = split.positions.get(part.ranks.clone()).unwrap_or_default();
        self.write_codes(self.section_of_codes(), part, local, out)
    }

    /// Writes a part of this value section and these positions.
    fn write_codes(
        &self,
        section: Section<'_>,
        part: &Part,
        local: &[u32],
        out: &mut Destination<'_>,
    ) -> Result<()> {
        let Part { start, header, ranks, .. } = part;
        let Header { coding, numel, count, .. } = *header;
        let values: ValueCoding = self.value_coding().without_blocks();
        let grouping = values.grouping();
        let group = match grouping {
            Grouping::None | Grouping::Whole => 0,
            Grouping::Ranks(len) => ranks.start / len as usize,
            Grouping::Positions(len) => (start / u64::from(len)) as usize,
        };
        let groups = grouping.number(numel, count) as usize;
        seal(*header, out, |index_section, value_section| {
            let local = if coding == Coding::None { &[] } else { local };
            pack::encode_into(coding, local, numel, index_section);
            if count == 0 {
                return;
            }
            let each = values.scales();
            let to = values.begin(numel, count, value_section);
            let scales = section.scales.get(group * each..(group + groups) * each);
            for (to, from) in to.scales.iter_mut().zip(scales.unwrap_or_default()) {
                *to = *from;
            }
            let width = values.code_bits() as usize;
            copy_bits(section.codes, ranks.start * width, ranks.len() * width, to.codes);
        })
    }

    /// The frame that some bytes begin with, and those that follow it. Of a frame of at most
    /// `max_numel` elements; what follows may be anything.
    pub fn parse_first(bytes: &[u8], max_numel: Option<u64>) -> Result<(Frame<'_>, &[u8])> {
        let end = section_end(bytes)?;
        let (frame, rest) =
            usize::try_from(end)
                .ok()
                .and_then(|end| bytes.split_at_checked(end))
                .ok_or(Error::Truncated { what: "frame", need: end, have: bytes.len() as u64 })?;
        Ok((Frame::parse(frame, max_numel)?, rest))
    }
}

fn check_bounds(bounds: &[u64], numel: u64) -> Result<()> {
    let ends = bounds.first() == Some(&0) && bounds.last() == Some(&numel);
    if ends && bounds.is_sorted() && (bounds.len() > 1 || numel == 0) {
        return Ok(());
    }
    Err(Error::argument(format!(
        "bounds must ascend from 0 to {numel}, the elements of the tensor"
    )))
}

/// Copies bits from bit `first` on, least significant bit first, and fills the last byte with zeros.
fn copy_bits(from: &[u8], first: usize, len: usize, to: &mut [u8]) {
    let shift = first % 8;
    let from = from.get(first / 8..).unwrap_or_default();
    if shift == 0 {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    } else {
        let after = from.iter().skip(1).chain(&[0]);
        for (to, (from, after)) in to.iter_mut().zip(from.iter().zip(after)) {
            *to = from >> shift | after << (8 - shift);
        }
    }
    if let Some(last) = to.last_mut().filter(|_| !len.is_multiple_of(8)) {
        *last &= (1 << (len % 8)) - 1;
    }
}
