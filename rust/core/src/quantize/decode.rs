//! Decodes value sections to values.

use super::code::{Place, load};
use super::coding::Section;
use super::spread::{LONGEST, Spread};
use super::{ValueCoding, bfloat16, codebook, finite_halves, float8, float16, float32, ternary};
use crate::simd::grid::Grid;
use crate::simd::{Kernels, fields};

/// Decodes the entries of one frame, some after others.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    kernels: &'static Kernels,
    coding: ValueCoding,
    section: Section<'a>,
    codes: [u8; LONGEST],
    multiples: Spread,
}

impl<'a> Decoder<'a> {
    pub fn new(coding: ValueCoding, section: Section<'a>) -> Self {
        let (kernels, multiples) = (Kernels::current(), Spread::default());
        Self { kernels, coding, section, codes: [0; LONGEST], multiples }
    }

    /// Decodes the entries from rank `first` on, which is a multiple of eight, into `out`.
    /// `positions` are those of these entries; `None` in dense frames. Blocks of any size.
    pub fn decode(&mut self, first: usize, positions: Option<&[u32]>, out: &mut [f32]) {
        let width = self.coding.code_bits() as usize;
        let from = first * width / 8;
        let bytes = &self.section.codes[from..from + (out.len() * width).div_ceil(8)];
        if self.coding.decode_plain(bytes, out) {
            return;
        }
        let bytes = bytes.chunks(LONGEST * width / 8);
        for ((i, out), bytes) in out.chunks_mut(LONGEST).enumerate().zip(bytes) {
            let at = i * LONGEST;
            let positions = positions.map(|positions| &positions[at..at + out.len()]);
            let (first, scales) = (first + at, self.section.scales);
            self.decode_block(bytes, Place { first, drawn: first, positions, scales }, out);
        }
    }

    /// Up to [`LONGEST`] entries with codes of up to eight bits.
    fn decode_block(&mut self, bytes: &[u8], place: Place<'_>, out: &mut [f32]) {
        let Self { kernels, coding, codes, multiples, .. } = self;
        let unpacked = &mut codes[..out.len()];
        let codes = match coding.code_bits() {
            8 => bytes,
            bits => {
                kernels.unpack(bytes, bits, unpacked);
                if *coding == ValueCoding::Ternary {
                    ternary::to_levels(unpacked);
                }
                unpacked
            }
        };
        if let ValueCoding::Codebook { .. } = coding {
            return from_codebook(*coding, codes, place, out);
        }
        let pair = multiples.over(kernels, *coding, place, out.len(), ValueCoding::multiples);
        match *coding {
            ValueCoding::Float8 { format, .. } => {
                kernels.float8_decode(codes, format, pair[0], out);
            }
            ValueCoding::Exponent { .. } => kernels.exponent_decode(codes, pair[0], out),
            ValueCoding::Uniform { bits, .. } => {
                kernels.from_levels(codes, Grid::new(bits), pair[0], out);
            }
            ValueCoding::Ternary => {
                kernels.from_levels(codes, Grid::new(ternary::BITS), pair[0], out);
            }
            ValueCoding::SignScale | ValueCoding::TwoMeans { .. } => {
                kernels.one_of_two(codes, pair, out);
            }
            _ => {}
        }
    }
}

/// The values of codes, one code a byte, group by group.
pub(super) fn from_codebook(coding: ValueCoding, codes: &[u8], place: Place<'_>, out: &mut [f32]) {
    let (bits, each) = (coding.code_bits() as u8, coding.scales());
    coding.grouping().for_each_run(place.first, codes.len(), place.positions, |group, range| {
        let scales = load(each, place.scales, group);
        codebook::values(bits, &codes[range.clone()], &scales, &mut out[range]);
    });
}

impl ValueCoding {
    /// Decodes entries that have no scales, if these have none.
    pub(super) fn decode_plain(self, bytes: &[u8], out: &mut [f32]) -> bool {
        match self {
            Self::Empty(_) => {}
            Self::Float32 => float32::decode(bytes, out),
            Self::BFloat16 => bfloat16::decode(bytes, out),
            Self::Float16 { exponent } => float16::decode(exponent.unwrap_or(0), bytes, out),
            _ => return false,
        }
        true
    }

    /// Whether every scale and code of a section may be there, and nothing is after them.
    pub(crate) fn is_valid(self, section: Section<'_>, count: u64) -> bool {
        let scales =
            section.scales.iter().all(|scale| self.takes_scale(f32::from_le_bytes(*scale)));
        let padded = fields::is_padded(section.codes, self.code_bits(), count);
        let codes = match self {
            Self::Float32 => float32::all_finite(section.codes),
            Self::BFloat16 => finite_halves(section.codes, 0x7F80),
            Self::Float16 { .. } => finite_halves(section.codes, 0x7C00),
            Self::Ternary => ternary::all_valid(section.codes),
            Self::Float8 { format, .. } => float8::all_finite(format, section.codes),
            Self::Empty(_)
            | Self::SignScale
            | Self::TwoMeans { .. }
            | Self::Uniform { .. }
            | Self::Codebook { .. }
            | Self::Exponent { .. } => true,
        };
        scales && padded && codes
    }
}
