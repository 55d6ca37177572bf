//! Decodes value sections to values.

use super::code::{Scratch, Work};
use super::coding::Section;
use super::groups::Place;
use super::spread::LONGEST;
use super::{Code, ValueCoding, each_coding};
use crate::simd::Kernels;

/// Decodes the entries of one frame, some after others.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    kernels: &'static Kernels,
    coding: ValueCoding,
    section: Section<'a>,
    scratch: Scratch,
}

impl<'a> Decoder<'a> {
    pub fn new(kernels: &'static Kernels, coding: ValueCoding, section: Section<'a>) -> Self {
        Self { kernels, coding, section, scratch: Scratch::default() }
    }

    /// Decodes the entries from rank `first` on, which is a multiple of eight, into `out`.
    /// `positions` are those of these entries; `None` in dense frames. Blocks of any size.
    pub fn decode(&mut self, first: usize, positions: Option<&[u32]>, out: &mut [f32]) {
        let width = self.coding.code_bits() as usize;
        let from = first * width / 8;
        let codes = &self.section.codes[from..from + (out.len() * width).div_ceil(8)];
        let place = Place { first, drawn: first, positions, scales: self.section.scales };
        let scratch = &mut self.scratch;
        let work = Work { kernels: self.kernels, key: None, place, scratch, streams: None };
        each_coding!(self.coding, coding => coding.decode(codes, out, work), ());
    }
}

/// Calls `decode` with up to [`LONGEST`] values at a time, their codes, and their place.
pub(super) fn in_blocks(
    bits: u32,
    codes: &[u8],
    values: &mut [f32],
    place: Place<'_>,
    mut decode: impl FnMut(&[u8], &mut [f32], Place<'_>),
) {
    let codes = codes.chunks(LONGEST * bits as usize / 8);
    for ((i, values), codes) in values.chunks_mut(LONGEST).enumerate().zip(codes) {
        let place = place.part(i * LONGEST, values.len());
        decode(codes, values, place);
    }
}

/// The codes of a block, one per byte.
pub(super) fn unpack<'a>(
    kernels: &Kernels,
    bits: u32,
    codes: &'a [u8],
    scratch: &'a mut [u8],
) -> &'a [u8] {
    if bits == 8 {
        return codes;
    }
    kernels.unpack(codes, bits, scratch);
    scratch
}
