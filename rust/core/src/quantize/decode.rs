//! Value sections back to values.

use super::coding::Section;
use super::{BLOCK, ValueCoding, bfloat16, code, finite_halves, float8, float16, float32, ternary};
use crate::simd::{Kernels, fields};

impl ValueCoding {
    /// Decodes the entries from rank `first` on, which is a multiple of eight, into `out`.
    /// `positions` are those of these entries; `None` in dense frames. Blocks of any size.
    pub(crate) fn decode(
        self,
        section: Section<'_>,
        first: usize,
        positions: Option<&[u32]>,
        out: &mut [f32],
    ) {
        let width = self.code_bits() as usize;
        let from = first * width / 8;
        let bytes = &section.codes[from..from + (out.len() * width).div_ceil(8)];
        self.decode_codes(bytes, section.scales, first, positions, out);
    }

    /// As [`ValueCoding::decode`], from the bytes of these entries' codes alone.
    pub(crate) fn decode_codes(
        self,
        bytes: &[u8],
        scales: &[[u8; 4]],
        first: usize,
        positions: Option<&[u32]>,
        out: &mut [f32],
    ) {
        match self {
            Self::Empty(_) => return,
            Self::Float32 => return float32::decode(bytes, out),
            Self::BFloat16 => return bfloat16::decode(bytes, out),
            Self::Float16 { exponent } => {
                return float16::decode(exponent.unwrap_or(0), bytes, out);
            }
            _ => {}
        }
        let mut codes = [0; BLOCK];
        let bytes = bytes.chunks(BLOCK * self.code_bits() as usize / 8);
        for ((i, out), bytes) in out.chunks_mut(BLOCK).enumerate().zip(bytes) {
            let codes = &mut codes[..out.len()];
            (Kernels::current().unpack)(bytes, self.code_bits(), codes);
            let at = i * BLOCK;
            let positions = positions.map(|positions| &positions[at..at + out.len()]);
            let len = out.len();
            self.grouping().for_each_run(first + at, len, positions, |group, range| {
                let scales = code::load(self, scales, group);
                self.values(&codes[range.clone()], &scales, &mut out[range]);
            });
        }
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
