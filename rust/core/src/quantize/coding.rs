//! How the values of a frame are coded: everything that a reader needs to decode them.

use super::Grouping;
use super::{Format, codebook, exponent, float8, power};
use super::{ternary, two_means, uniform};
use crate::simd::grid::Grid;
use crate::{Error, Result};

/// Which quantizer coded the values of a frame, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantizerId(pub u8);

impl QuantizerId {
    /// The only one that uses the header's exponent.
    pub(crate) const SCALED_FLOAT16: Self = Self(3);

    /// The name, if this version knows it.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "float32",
            1 => "bfloat16",
            2 => "float16",
            3 => "float16 (scaled)",
            4 => "float8-e5m2",
            5 => "float8-e4m3",
            6 => "uniform",
            7 => "sign-scale",
            8 => "two-means",
            9 => "ternary",
            10 => "codebook",
            11 => "exponent",
            _ => return None,
        })
    }
}

/// How the values of one frame are coded.
///
/// A value section is a prologue of the coding's parameters, its scales as float32, and then the
/// codes of all entries, packed from the least significant bit of each byte up. Where there are no
/// entries, the section is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueCoding {
    /// No entries.
    Empty(QuantizerId),
    /// IEEE binary32.
    Float32,
    /// The upper half of a binary32.
    BFloat16,
    /// IEEE binary16.
    Float16 {
        /// Values were multiplied by two to this power; none has an id of its own.
        exponent: Option<i16>,
    },
    /// A floating-point number of eight bits, times the scale of a block.
    Float8 {
        /// Which bits are the exponent's.
        format: Format,
        /// Entries that share a scale, at least one; none without scales.
        block: Option<u32>,
    },
    /// A sign and a level between zero and the scale of a block.
    Uniform {
        /// Bits of a code, 2 to 8.
        bits: u8,
        /// Entries that share a scale, at least one.
        block: u32,
    },
    /// A sign, and one magnitude for all.
    SignScale,
    /// One of two values, of each column.
    TwoMeans {
        /// Positions in a column, at least one.
        column: u32,
    },
    /// Minus, zero or plus, and one magnitude for all.
    Ternary,
    /// A sign and one of the magnitudes of a block.
    Codebook {
        /// Bits of a code, 1 to 4.
        bits: u8,
        /// Entries that share magnitudes, at least one.
        block: u32,
    },
    /// A sign and a power of two, times the scale of a block.
    Exponent {
        /// Entries that share a scale, at least one.
        block: u32,
    },
}

/// Longest prologue in bytes.
const MAX_PROLOGUE: usize = 8;

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
    /// The id of its quantizer.
    pub fn id(self) -> QuantizerId {
        QuantizerId(match self {
            Self::Empty(id) => return id,
            Self::Float32 => 0,
            Self::BFloat16 => 1,
            Self::Float16 { exponent: None } => 2,
            Self::Float16 { exponent: Some(_) } => 3,
            Self::Float8 { format: Format::E5M2, .. } => 4,
            Self::Float8 { format: Format::E4M3, .. } => 5,
            Self::Uniform { .. } => 6,
            Self::SignScale => 7,
            Self::TwoMeans { .. } => 8,
            Self::Ternary => 9,
            Self::Codebook { .. } => 10,
            Self::Exponent { .. } => 11,
        })
    }

    /// Reads the prologue of a value section, and checks its length. Allocates nothing, and looks at
    /// no scale or code. Of a frame of up to 2^32 - 1 elements and no more entries than that.
    pub(crate) fn parse(
        id: QuantizerId,
        exponent: i16,
        section: &[u8],
        numel: u64,
        count: u64,
    ) -> Result<Self> {
        let coding = match id {
            _ if count == 0 => Self::Empty(id),
            QuantizerId(0) => Self::Float32,
            QuantizerId(1) => Self::BFloat16,
            QuantizerId(2) => Self::Float16 { exponent: None },
            QuantizerId::SCALED_FLOAT16 => Self::Float16 { exponent: Some(exponent) },
            QuantizerId(4) => float8::parse(Format::E5M2, prologue(section)?),
            QuantizerId(5) => float8::parse(Format::E4M3, prologue(section)?),
            QuantizerId(6) => uniform::parse(prologue(section)?)?,
            QuantizerId(7) => Self::SignScale,
            QuantizerId(8) => two_means::parse(prologue(section)?)?,
            QuantizerId(9) => Self::Ternary,
            QuantizerId(10) => codebook::parse(prologue(section)?)?,
            QuantizerId(11) => exponent::parse(prologue(section)?)?,
            QuantizerId(id) => {
                return Err(Error::Unsupported { what: "quantizer", found: u32::from(id) });
            }
        };
        let (have, expected) = (section.len() as u64, coding.value_len(numel, count));
        if have != expected {
            return Err(Error::corrupt(format!(
                "value section has {have} bytes instead of {expected}"
            )));
        }
        Ok(coding)
    }

    /// The prologue, and its length.
    fn prologue(self) -> ([u8; MAX_PROLOGUE], usize) {
        let mut bytes = [0; MAX_PROLOGUE];
        match self {
            Self::Float8 { block, .. } => {
                bytes[..4].copy_from_slice(&block.unwrap_or(0).to_le_bytes());
                (bytes, float8::PROLOGUE)
            }
            Self::Exponent { block } => {
                bytes[..4].copy_from_slice(&block.to_le_bytes());
                (bytes, exponent::PROLOGUE)
            }
            Self::Uniform { bits, block } | Self::Codebook { bits, block } => {
                bytes[0] = bits;
                bytes[4..].copy_from_slice(&block.to_le_bytes());
                (bytes, uniform::PROLOGUE)
            }
            Self::TwoMeans { column } => {
                bytes[..4].copy_from_slice(&column.to_le_bytes());
                (bytes, two_means::PROLOGUE)
            }
            _ => (bytes, 0),
        }
    }

    /// What the header says as the exponent.
    pub(crate) fn exponent(self) -> i16 {
        match self {
            Self::Float16 { exponent: Some(exponent) } => exponent,
            _ => 0,
        }
    }

    /// Bits of a code.
    pub fn code_bits(self) -> u32 {
        match self {
            Self::Empty(_) => 0,
            Self::Float32 => 32,
            Self::BFloat16 | Self::Float16 { .. } => 16,
            Self::Float8 { .. } | Self::Exponent { .. } => 8,
            Self::Uniform { bits, .. } | Self::Codebook { bits, .. } => u32::from(bits),
            Self::SignScale | Self::TwoMeans { .. } => 1,
            Self::Ternary => 2,
        }
    }

    /// Which entries share scales.
    pub(crate) fn grouping(self) -> Grouping {
        match self {
            Self::Empty(_) | Self::Float32 | Self::BFloat16 | Self::Float16 { .. } => {
                Grouping::None
            }
            Self::SignScale | Self::Ternary => Grouping::Whole,
            Self::Float8 { block: None, .. } => Grouping::None,
            Self::Float8 { block: Some(block), .. }
            | Self::Exponent { block }
            | Self::Codebook { block, .. }
            | Self::Uniform { block, .. } => Grouping::Ranks(block),
            Self::TwoMeans { column } => Grouping::Positions(column),
        }
    }

    /// Whether decoding an entry takes its position.
    pub(crate) fn needs_positions(self) -> bool {
        matches!(self.grouping(), Grouping::Positions(_))
    }

    /// How many scales a group has.
    pub(crate) fn scales(self) -> usize {
        match self {
            Self::Empty(_) | Self::Float32 | Self::BFloat16 | Self::Float16 { .. } => 0,
            Self::SignScale | Self::Ternary | Self::Uniform { .. } | Self::Exponent { .. } => 1,
            Self::Float8 { block, .. } => usize::from(block.is_some()),
            Self::Codebook { bits, .. } => codebook::magnitudes(bits),
            Self::TwoMeans { .. } => 2,
        }
    }

    /// Bytes of prologue and scales.
    pub(crate) fn overhead(self, numel: u64, count: u64) -> u64 {
        let (_, prologue) = self.prologue();
        prologue as u64 + 4 * self.scales() as u64 * self.grouping().number(numel, count)
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
        let (prologue, len) = self.prologue();
        if count == 0 {
            return SectionMut { scales: &mut [], codes: section };
        }
        let (head, rest) = section.split_at_mut(len);
        head.copy_from_slice(&prologue[..len]);
        let scales = self.overhead(numel, count) as usize - len;
        let (scales, codes) = rest.split_at_mut(scales);
        SectionMut { scales: scales.as_chunks_mut().0, codes }
    }

    /// The parts of a section that [`ValueCoding::parse`] has found as long as it must be.
    pub(crate) fn section(self, numel: u64, count: u64, section: &[u8]) -> Section<'_> {
        if count == 0 {
            return Section { scales: &[], codes: section };
        }
        let (_, prologue) = self.prologue();
        let overhead = self.overhead(numel, count) as usize;
        let scales = section[prologue..overhead].as_chunks().0;
        Section { scales, codes: &section[overhead..] }
    }

    /// What the values of groups are multiplied by to become codes, one after the other.
    pub(super) fn factors(self, scales: &[[u8; 4]], one: &mut [f32], other: &mut [f32]) {
        match self {
            Self::Float8 { block: Some(_), .. } => each(scales, one, other, power::inverse),
            Self::Float8 { block: None, .. } => one.fill(1.0),
            Self::Exponent { .. } => each(scales, one, other, |s| [exponent::factor(s), 1.0]),
            Self::Uniform { bits, .. } => {
                let grid = Grid::new(bits);
                each(scales, one, other, |scale| grid.factors(scale));
            }
            Self::Ternary => {
                let grid = Grid::new(ternary::BITS);
                each(scales, one, other, |scale| grid.factors(scale));
            }
            _ => {}
        }
    }

    /// What the codes of groups are multiplied by; of signs, what either stands for.
    pub(super) fn multiples(self, scales: &[[u8; 4]], one: &mut [f32], other: &mut [f32]) {
        match self {
            Self::Float8 { block: None, .. } => one.fill(1.0),
            Self::SignScale => each(scales, one, other, |scale| [-scale, scale]),
            Self::TwoMeans { .. } => {
                let pairs = scales.as_chunks::<2>().0;
                for ((one, other), pair) in one.iter_mut().zip(other).zip(pairs) {
                    [*one, *other] = pair.map(f32::from_le_bytes);
                }
            }
            _ => each(scales, one, other, |scale| [scale, 1.0]),
        }
    }

    /// Whether a scale may be in a frame. Magnitudes have no sign.
    pub(crate) fn takes_scale(self, scale: f32) -> bool {
        match self {
            Self::Float8 { format, .. } => float8::takes_scale(scale, format),
            Self::Exponent { .. } => exponent::takes_scale(scale),
            Self::TwoMeans { .. } => scale.is_finite(),
            _ => scale.is_finite() && scale.is_sign_positive(),
        }
    }
}

/// Two numbers of each group, from its scale.
#[inline(always)]
fn each(scales: &[[u8; 4]], one: &mut [f32], other: &mut [f32], numbers: impl Fn(f32) -> [f32; 2]) {
    for ((one, other), scale) in one.iter_mut().zip(other).zip(scales) {
        [*one, *other] = numbers(f32::from_le_bytes(*scale));
    }
}

/// The first bytes of a section, which hold its prologue.
fn prologue<const N: usize>(section: &[u8]) -> Result<[u8; N]> {
    section
        .first_chunk()
        .copied()
        .ok_or_else(|| Error::corrupt(format!("value section has only {} bytes", section.len())))
}
