//! How the values of a frame are coded: everything that a reader needs to decode them.

use super::code::{Scratch, Work};
use super::prologue::Prologue;
use super::{Grouping, LONGEST, QuantizerId, ValueCoding, each_coding};
use crate::simd::fields;
use crate::{Error, Result};
use std::ops::RangeInclusive;

/// What the header of a frame says about a coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Which of its ids in the registry.
    pub variety: usize,
    /// The header's exponent.
    pub exponent: i16,
}

impl Head {
    /// Of a coding with one id and without an exponent.
    pub const PLAIN: Self = Self { variety: 0, exponent: 0 };
}

/// How the values of a frame are coded.
pub(crate) trait Code: Copy {
    /// The exponents that a header may have with this variety: 0 where it means nothing.
    fn exponents(_variety: usize) -> RangeInclusive<i16> {
        0..=0
    }

    /// What the header says.
    fn head(self) -> Head {
        Head::PLAIN
    }

    /// What the section begins with.
    fn prologue(self) -> Prologue {
        Prologue::NONE
    }

    /// The coding of a header, whose exponent is allowed, and of a section that begins with its
    /// prologue. An error if that is not one; looks at nothing else.
    fn parse(head: Head, section: &[u8]) -> Result<Self>;

    /// Bits of a code.
    fn bits(self) -> u32;

    /// Which entries share scales.
    fn grouping(self) -> Grouping {
        Grouping::None
    }

    /// How many scales a group has.
    fn scales(self) -> usize {
        usize::from(self.grouping() != Grouping::None)
    }

    /// Whether a scale may be in a frame: a magnitude, finite and without a sign.
    fn takes_scale(self, scale: f32) -> bool {
        scale.is_finite() && scale.is_sign_positive()
    }

    /// Whether all codes may be in a frame.
    fn are_valid(self, _codes: &[u8]) -> bool {
        true
    }

    /// Codes any number of finite values, a multiple of eight but for the last of a frame.
    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>);

    /// Codes up to [`LONGEST`] values as [`Code::encode`] does, and leaves of each
    /// what its code does not say.
    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        self.encode(values, codes, Work { scratch: &mut *work.scratch, ..work });
        let Work { kernels, place, scratch, .. } = work;
        let sent = &mut scratch.sent.get_or_insert([0.0; LONGEST])[..values.len()];
        let scratch = &mut Scratch::default();
        self.decode(codes, sent, Work { kernels, key: None, place, scratch, streams: None });
        kernels.subtract(values, sent);
    }

    /// The values of any number of codes.
    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>);
}

/// The parts of a value section that is being written.
pub(crate) struct SectionMut<'a> {
    pub scales: &'a mut [[u8; 4]],
    pub codes: &'a mut [u8],
}

/// The parts of a value section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    pub scales: &'a [[u8; 4]],
    pub codes: &'a [u8],
}

impl ValueCoding {
    /// Reads the prologue of a value section, and checks its length. Allocates nothing, and looks at
    /// no scale or code. Of a frame of up to 2^32 - 1 elements and no more entries than that.
    pub(crate) fn parse(
        id: QuantizerId,
        exponent: i16,
        section: &[u8],
        numel: u64,
        count: u64,
    ) -> Result<Self> {
        let coding = if count == 0 {
            Self::Empty(id)
        } else {
            let unknown = Error::Unsupported { what: "quantizer", found: u32::from(id.0) };
            Self::read(id, exponent, section)?.ok_or(unknown)?
        };
        let (have, expected) = (section.len() as u64, coding.value_len(numel, count));
        let in_blocks = coding.in_blocks().is_some();
        if have == expected && !in_blocks || coding.may_have_blocks(have, expected, count) {
            return Ok(coding);
        }
        let than = if in_blocks { " or what coded blocks may have" } else { "" };
        Err(Error::corrupt(format!("value section has {have} bytes instead of {expected}{than}")))
    }

    fn prologue(self) -> Prologue {
        each_coding!(self, coding => coding.prologue(), Prologue::NONE)
    }

    /// What the header says as the exponent.
    pub(crate) fn exponent(self) -> i16 {
        each_coding!(self, coding => coding.head().exponent, 0)
    }

    /// Bits of a code.
    pub fn code_bits(self) -> u32 {
        each_coding!(self, coding => coding.bits(), 0)
    }

    /// Which entries share scales.
    pub(crate) fn grouping(self) -> Grouping {
        each_coding!(self, coding => coding.grouping(), Grouping::None)
    }

    /// Whether decoding an entry takes its position.
    pub(crate) fn needs_positions(self) -> bool {
        matches!(self.grouping(), Grouping::Positions(_))
    }

    /// How many scales a group has.
    pub(crate) fn scales(self) -> usize {
        each_coding!(self, coding => coding.scales(), 0)
    }

    /// Bytes of prologue and scales.
    pub(crate) fn overhead(self, numel: u64, count: u64) -> u64 {
        let scales = self.scales() as u64 * self.grouping().number(numel, count);
        self.prologue().len() as u64 + 4 * scales
    }

    /// Bytes of the value section of a frame of `count` entries out of `numel`.
    pub fn value_len(self, numel: u64, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        self.overhead(numel, count) + (count * u64::from(self.code_bits())).div_ceil(8)
    }

    /// Writes the prologue of a section, and gives out what follows it.
    pub(crate) fn begin(self, numel: u64, count: u64, section: &mut [u8]) -> SectionMut<'_> {
        if count == 0 {
            return SectionMut { scales: &mut [], codes: section };
        }
        let prologue = self.prologue();
        let (head, rest) = section.split_at_mut(prologue.len());
        head.copy_from_slice(prologue.as_slice());
        let scales = self.overhead(numel, count) as usize - prologue.len();
        let (scales, codes) = rest.split_at_mut(scales);
        SectionMut { scales: scales.as_chunks_mut().0, codes }
    }

    /// The parts of a section that [`ValueCoding::parse`] has found as long as it must be.
    pub(crate) fn section(self, numel: u64, count: u64, section: &[u8]) -> Section<'_> {
        if count == 0 {
            return Section { scales: &[], codes: section };
        }
        let overhead = self.overhead(numel, count) as usize;
        let scales = section[self.prologue().len()..overhead].as_chunks().0;
        Section { scales, codes: &section[overhead..] }
    }

    /// Whether every scale and code of a section may be there, and nothing is after them.
    pub(crate) fn is_valid(self, section: Section<'_>, count: u64) -> bool {
        let padded = fields::is_padded(section.codes, self.code_bits(), count);
        padded && each_coding!(self, coding => are_valid(coding, section), true)
    }
}

fn are_valid(coding: impl Code, section: Section<'_>) -> bool {
    let takes = |scale: &[u8; 4]| coding.takes_scale(f32::from_le_bytes(*scale));
    section.scales.iter().all(takes) && coding.are_valid(section.codes)
}
