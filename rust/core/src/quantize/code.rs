//! Values to value sections.

use super::chance::Draw;
use super::coding::SectionMut;
use super::{BLOCK, Hints, Quantizer, ValueCoding, bfloat16, float16, float32};
use crate::simd::{self, Kernels};

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
    fit(quantizer, coding, hints, positions, values, scales);
    let job = Coder { coding, hints: *hints };
    let step = BLOCK * coding.code_bits() as usize / 8;
    if step == 0 {
        return;
    }
    for (i, codes) in codes.chunks_mut(step).enumerate() {
        let ranks = i * BLOCK..values.len().min((i + 1) * BLOCK);
        let positions = positions.map(|positions| &positions[ranks.clone()]);
        let (first, drawn) = (ranks.start, ranks.start);
        job.code(&values[ranks], Place { first, drawn, positions, scales }, codes, None);
    }
}

/// Fits the scales of all groups of a list.
fn fit(
    quantizer: Quantizer,
    coding: ValueCoding,
    hints: &Hints,
    positions: Option<&[u32]>,
    values: &[f32],
    scales: &mut [[u8; 4]],
) {
    let each = coding.scales();
    if each == 0 {
        return;
    }
    // Columns without entries have scales, too.
    scales.fill([0; 4]);
    coding.grouping().for_each_run(0, values.len(), positions, |group, range| {
        let fitted = quantizer.fit(&values[range], hints.magnitude);
        store(&fitted[..each], &mut scales[group * each..][..each]);
    });
}

/// Puts scales where a frame has them.
pub(crate) fn store(scales: &[f32], out: &mut [[u8; 4]]) {
    for (out, scale) in out.iter_mut().zip(scales) {
        *out = scale.to_le_bytes();
    }
}

/// The scales of a group, as a frame has them.
pub(crate) fn load(coding: ValueCoding, scales: &[[u8; 4]], group: usize) -> super::Scales {
    let each = coding.scales();
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

impl Coder {
    /// Codes a block of finite values, as many as a multiple of eight but for the last of a frame.
    /// Where it is wanted, `sent` becomes what they are decoded to.
    pub fn code(self, values: &[f32], place: Place<'_>, out: &mut [u8], sent: Option<&mut [f32]>) {
        match self.coding {
            ValueCoding::Empty(_) => return,
            ValueCoding::Float32 => float32::encode(values, out),
            ValueCoding::BFloat16 => bfloat16::encode(values, out),
            ValueCoding::Float16 { exponent } => {
                float16::encode(exponent.unwrap_or(0), values, out);
            }
            // Signs are the same whatever the scales are.
            ValueCoding::SignScale | ValueCoding::TwoMeans { .. } if sent.is_none() => {
                (Kernels::current().sign_bits)(values, out);
            }
            _ => return self.code_bytes(values, place, out, sent),
        }
        if let Some(sent) = sent {
            self.coding.decode_codes(out, place.scales, place.first, place.positions, sent);
        }
    }

    /// Codes a block as [`Coder::code`] does, and leaves of each value what its code does not say.
    /// `sent` has room for as many values.
    pub fn code_left(
        self,
        kernels: &Kernels,
        values: &mut [f32],
        place: Place<'_>,
        out: &mut [u8],
        sent: &mut [f32],
    ) {
        if self.coding == ValueCoding::BFloat16 {
            (kernels.narrow_bf16_left)(values, out.as_chunks_mut().0);
        } else if let Some(pair) = self.pair(place, values.len()) {
            (kernels.sign_bits_left)(values, pair, out);
        } else {
            self.code(values, place, out, Some(&mut *sent));
            (kernels.subtract)(values, sent);
        }
    }

    /// What signs below zero and others are decoded to, where that is the same in all of a block.
    fn pair(self, place: Place<'_>, len: usize) -> Option<[f32; 2]> {
        let mut pair = None;
        if let ValueCoding::SignScale | ValueCoding::TwoMeans { .. } = self.coding {
            let grouping = self.coding.grouping();
            grouping.for_each_run(place.first, len, place.positions, |group, range| {
                if range.len() == len {
                    let [first, second, ..] = load(self.coding, place.scales, group);
                    let is_pair = self.coding != ValueCoding::SignScale;
                    pair = Some(if is_pair { [first, second] } else { [-first, first] });
                }
            });
        }
        pair
    }

    /// By way of one code a byte.
    fn code_bytes(
        self,
        values: &[f32],
        place: Place<'_>,
        out: &mut [u8],
        mut sent: Option<&mut [f32]>,
    ) {
        let draw = Draw::of(self.hints.key, place.drawn as u32);
        let (mut codes, grouping) = ([0; simd::BLOCK], self.coding.grouping());
        let codes = &mut codes[..values.len()];
        grouping.for_each_run(place.first, values.len(), place.positions, |group, range| {
            let scales = load(self.coding, place.scales, group);
            let (draw, codes) = (draw.skip(range.start), &mut codes[range.clone()]);
            self.coding.code(&values[range.clone()], &scales, draw, codes);
            if let Some(sent) = &mut sent {
                self.coding.values(codes, &scales, &mut sent[range]);
            }
        });
        (Kernels::current().pack)(codes, self.coding.code_bits(), out);
    }
}
