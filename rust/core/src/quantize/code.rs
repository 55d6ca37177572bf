//! Codes values into value sections.

use super::coding::SectionMut;
use super::groups::Place;
use super::spread::{LONGEST, Spread};
use super::{Code, Hints, Quantizer, ValueCoding, each_coding};
use crate::rng::Key;
use crate::simd::Kernels;
use crate::simd::stream::Streaming;

/// Writes the values of a list to a value section that is as long as its coding says.
///
/// `positions` are those of the values; `None` means every one. Values must be finite.
pub(crate) fn encode(
    kernels: &'static Kernels,
    (quantizer, coding): (Quantizer, ValueCoding),
    hints: &Hints,
    (numel, positions): (u64, Option<&[u32]>),
    values: &[f32],
    section: &mut [u8],
) {
    let SectionMut { scales, codes } = coding.begin(numel, values.len() as u64, section);
    let (groups, each) = ((coding.grouping(), positions), coding.scales());
    quantizer.fit_list(
        (kernels, coding.exponent()),
        groups,
        values,
        hints.magnitude,
        (scales, each),
    );
    let place = Place { first: 0, drawn: 0, positions, scales };
    let coder = Coder { kernels, coding, hints: *hints };
    coder.code(values, place, codes, &mut Scratch::default(), None);
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

impl Coder {
    /// Codes finite values, as many as a multiple of eight but for the last of a frame. Codes that are
    /// as long as values go past the caches if `streams`.
    pub fn code(
        self,
        values: &[f32],
        place: Place<'_>,
        out: &mut [u8],
        scratch: &mut Scratch,
        streams: Option<&Streaming<'_>>,
    ) {
        let work = Work { kernels: self.kernels, key: self.hints.key, place, scratch, streams };
        each_coding!(self.coding, coding => coding.encode(values, out, work), ());
    }

    /// Codes up to [`LONGEST`] values as [`Coder::code`] does, and leaves of each value what its code
    /// does not say.
    pub fn code_left(
        self,
        values: &mut [f32],
        place: Place<'_>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) {
        let key = self.hints.key;
        let work = Work { kernels: self.kernels, key, place, scratch, streams: None };
        each_coding!(self.coding, coding => coding.encode_left(values, out, work), ());
    }
}

/// What a coding works with.
pub(crate) struct Work<'a> {
    pub kernels: &'static Kernels,
    /// The key of the frame's random numbers, if there are any to draw.
    pub key: Option<Key>,
    pub place: Place<'a>,
    pub scratch: &'a mut Scratch,
    /// Given to write codes past the caches that are not read soon.
    pub streams: Option<&'a Streaming<'a>>,
}

/// Memory to code or decode the blocks of one frame in, one after the other. What a coding does not
/// use is not made.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) codes: Option<[u8; LONGEST]>,
    pub(super) sent: Option<[f32; LONGEST]>,
    pub(super) factors: Option<Spread>,
    pub(super) multiples: Option<Spread>,
}

/// Calls `code` with up to [`LONGEST`] values at a time, where their codes go, and their place.
pub(super) fn in_blocks(
    bits: u32,
    values: &[f32],
    codes: &mut [u8],
    place: Place<'_>,
    mut code: impl FnMut(&[f32], &mut [u8], Place<'_>),
) {
    let codes = codes.chunks_mut(LONGEST * bits as usize / 8);
    for ((i, values), codes) in values.chunks(LONGEST).enumerate().zip(codes) {
        code(values, codes, place.part(i * LONGEST, values.len()));
    }
}

/// Has a code per byte made for a block, and packs them.
pub(super) fn pack(
    kernels: &Kernels,
    (bits, len): (u32, usize),
    scratch: &mut Option<[u8; LONGEST]>,
    out: &mut [u8],
    make: impl FnOnce(&mut [u8]),
) {
    if bits == 8 {
        return make(out);
    }
    let codes = &mut scratch.get_or_insert([0; LONGEST])[..len];
    make(codes);
    kernels.pack(codes, bits, out);
}
