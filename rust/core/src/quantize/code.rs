//! Codes values into value sections.

use super::chance::Draw;
use super::coding::SectionMut;
use super::spread::{LONGEST, Spread};
use super::{Grouping, Hints, Quantizer, ValueCoding, bfloat16, codebook, decode};
use super::{float8, float16, float32, ternary};
use crate::scan::CHUNK;
use crate::simd::grid::Grid;
use crate::simd::{Kernels, Scaling};

/// Writes the values of a list to a value section that is as long as its coding says.
///
/// `positions` are those of the values; `None` means every one. Values must be finite.
pub(crate) fn encode(
    quantizer: Quantizer,
    coding: ValueCoding,
    hints: &Hints,
    (numel, positions): (u64, Option<&[u32]>),
    values: &[f32],
    section: &mut [u8],
) {
    let SectionMut { scales, codes } = coding.begin(numel, values.len() as u64, section);
    let job = Coder { kernels: Kernels::current(), coding, hints: *hints };
    job.fit(quantizer, positions, values, scales);
    if job.code_plain(values, codes) {
        return;
    }
    let (step, mut room) = (LONGEST * coding.code_bits() as usize / 8, Room::default());
    for (i, codes) in codes.chunks_mut(step).enumerate() {
        let ranks = i * LONGEST..values.len().min((i + 1) * LONGEST);
        let positions = positions.map(|positions| &positions[ranks.clone()]);
        let (first, drawn) = (ranks.start, ranks.start);
        let place = Place { first, drawn, positions, scales };
        job.code(&values[ranks], place, codes, &mut room);
    }
}

/// Puts scales where a frame has them.
pub(crate) fn store(scales: &[f32], out: &mut [[u8; 4]]) {
    for (out, scale) in out.iter_mut().zip(scales) {
        *out = scale.to_le_bytes();
    }
}

/// The scales of a group, `each` of them, as a frame has them.
#[inline]
pub(super) fn load(each: usize, scales: &[[u8; 4]], group: usize) -> super::Scales {
    let mut out = super::Scales::default();
    // A section has those of every group; whatever a frame says, no reader panics here.
    let stored = scales.get(group * each..(group + 1) * each).unwrap_or_default();
    for (out, stored) in out.iter_mut().zip(stored) {
        *out = f32::from_le_bytes(*stored);
    }
    out
}

/// How the values of a frame are turned into codes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coder {
    pub kernels: &'static Kernels,
    pub coding: ValueCoding,
    pub hints: Hints,
}

/// Which entries of a frame a block of values is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The rank of the first of them, counted from where the scales begin.
    pub first: usize,
    /// The same counted from the beginning of the frame.
    pub drawn: usize,
    /// Their positions; none if those are the ranks.
    pub positions: Option<&'a [u32]>,
    pub scales: &'a [[u8; 4]],
}

/// Memory to code the blocks of one frame in, one after the other.
#[derive(Debug)]
pub(crate) struct Room {
    codes: [u8; LONGEST],
    sent: [f32; LONGEST],
    factors: Spread,
    multiples: Spread,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            codes: [0; LONGEST],
            sent: [0.0; LONGEST],
            factors: Spread::default(),
            multiples: Spread::default(),
        }
    }
}

impl Coder {
    /// Codes a block of up to [`LONGEST`] finite values, as many as a multiple of eight but for the
    /// last of a frame.
    pub fn code(self, values: &[f32], place: Place<'_>, out: &mut [u8], room: &mut Room) {
        if self.code_plain(values, out) {
            return;
        }
        let Room { codes, factors, .. } = room;
        self.pack(values.len(), codes, out, |codes| {
            self.code_bytes(values, place, codes, factors);
        });
    }

    /// Codes any number of values, if their codes do not follow from scales.
    fn code_plain(self, values: &[f32], out: &mut [u8]) -> bool {
        match self.coding {
            ValueCoding::Empty(_) => {}
            ValueCoding::Float32 => float32::encode(values, out),
            ValueCoding::BFloat16 => bfloat16::encode(values, out),
            ValueCoding::Float16 { exponent } => {
                float16::encode(exponent.unwrap_or(0), values, out);
            }
            // Signs are the same whatever the scales are.
            ValueCoding::SignScale | ValueCoding::TwoMeans { .. } => {
                self.kernels.sign_bits(values, out);
            }
            _ => return false,
        }
        true
    }

    /// Codes a block as [`Coder::code`] does, and leaves of each value what its code does not say.
    pub fn code_left(self, values: &mut [f32], place: Place<'_>, out: &mut [u8], room: &mut Room) {
        let Room { codes, factors, multiples, .. } = room;
        match self.coding {
            ValueCoding::BFloat16 => {
                self.kernels.narrow_bf16_left(values, out.as_chunks_mut().0);
            }
            ValueCoding::SignScale | ValueCoding::TwoMeans { .. } => {
                let len = values.len();
                let pair =
                    multiples.over(self.kernels, self.coding, place, len, ValueCoding::multiples);
                self.kernels.sign_bits_left(values, pair, out);
            }
            ValueCoding::Float8 { .. }
            | ValueCoding::Exponent { .. }
            | ValueCoding::Uniform { .. }
            | ValueCoding::Ternary => {
                let len = values.len();
                let scaling = Scaling {
                    to: factors.over(self.kernels, self.coding, place, len, ValueCoding::factors),
                    back: multiples.over(
                        self.kernels,
                        self.coding,
                        place,
                        len,
                        ValueCoding::multiples,
                    )[0],
                };
                self.pack(len, codes, out, |codes| {
                    self.left_bytes(values, scaling, place.drawn, codes);
                });
            }
            _ => {
                self.code(values, place, out, room);
                let sent = &mut room.sent[..values.len()];
                match self.coding {
                    ValueCoding::Codebook { bits, .. } => {
                        let codes = &mut room.codes[..values.len()];
                        self.kernels.unpack(out, u32::from(bits), codes);
                        decode::from_codebook(self.coding, codes, place, sent);
                    }
                    _ => _ = self.coding.decode_plain(out, sent),
                }
                self.kernels.subtract(values, sent);
            }
        }
    }

    /// Has `len` codes made, one code a byte, and packs them.
    fn pack(
        self,
        len: usize,
        codes: &mut [u8; LONGEST],
        out: &mut [u8],
        make: impl FnOnce(&mut [u8]),
    ) {
        match self.coding.code_bits() {
            8 => make(out),
            bits => {
                make(&mut codes[..len]);
                self.kernels.pack(&codes[..len], bits, out);
            }
        }
    }

    /// One code a byte.
    fn code_bytes(self, values: &[f32], place: Place<'_>, codes: &mut [u8], factors: &mut Spread) {
        let (kernels, draw) = (self.kernels, Draw::of(self.hints.key, place.drawn as u32));
        let Draw { key, first, .. } = draw;
        let levels = |bits, to, codes: &mut [u8]| {
            kernels.to_levels(values, Grid::new(bits), to, key, first, codes);
        };
        if let ValueCoding::Codebook { bits, .. } = self.coding {
            return self.code_by_codebook(bits, values, place, codes);
        }
        let to = factors.over(kernels, self.coding, place, values.len(), ValueCoding::factors);
        match self.coding {
            ValueCoding::Float8 { format, .. } => {
                float8::code(kernels, format, values, to, draw, codes);
            }
            ValueCoding::Exponent { .. } => {
                kernels.exponent_encode(values, to[0], key, first, codes);
            }
            ValueCoding::Uniform { bits, .. } => levels(bits, to, codes),
            ValueCoding::Ternary => {
                levels(ternary::BITS, to, codes);
                ternary::from_levels(codes);
            }
            _ => {}
        }
    }

    /// As [`Coder::code_bytes`]; leaves of each value what its code does not say.
    fn left_bytes(self, values: &mut [f32], scaling: Scaling<'_>, drawn: usize, codes: &mut [u8]) {
        let (kernels, draw) = (self.kernels, Draw::of(self.hints.key, drawn as u32));
        let Draw { key, first, .. } = draw;
        match self.coding {
            ValueCoding::Float8 { format, .. } => {
                float8::left(kernels, format, values, scaling, draw, codes);
            }
            ValueCoding::Exponent { .. } => {
                kernels.exponent_left(values, scaling, key, first, codes);
            }
            ValueCoding::Uniform { bits, .. } => {
                kernels.to_levels_left(values, Grid::new(bits), scaling, key, first, codes);
            }
            ValueCoding::Ternary => {
                let grid = Grid::new(ternary::BITS);
                kernels.to_levels_left(values, grid, scaling, key, first, codes);
                ternary::from_levels(codes);
            }
            _ => {}
        }
    }

    /// Group by group: their magnitudes are too many to be spread over the entries.
    fn code_by_codebook(self, bits: u8, values: &[f32], place: Place<'_>, codes: &mut [u8]) {
        let (grouping, each) = (self.coding.grouping(), self.coding.scales());
        grouping.for_each_run(place.first, values.len(), place.positions, |group, range| {
            let scales = load(each, place.scales, group);
            codebook::code(bits, &values[range.clone()], &scales, &mut codes[range]);
        });
    }

    /// Fits the scales of all groups of a list.
    fn fit(
        self,
        quantizer: Quantizer,
        positions: Option<&[u32]>,
        values: &[f32],
        scales: &mut [[u8; 4]],
    ) {
        let (each, told) = (self.coding.scales(), self.hints.magnitude);
        match self.coding.grouping() {
            _ if each == 0 => {}
            Grouping::Ranks(len) if len as usize <= CHUNK => {
                let groups = (values, len as usize);
                quantizer.fit_groups(self.kernels, groups, told, (scales, each));
            }
            grouping => {
                // Columns without entries have scales, too.
                scales.fill([0; 4]);
                grouping.for_each_run(0, values.len(), positions, |group, range| {
                    let fitted = quantizer.fit(&values[range], told);
                    store(&fitted[..each], &mut scales[group * each..][..each]);
                });
            }
        }
    }
}
