//! Codes that are values times a factor of their group, rounded: what such codings have in common.

use super::Code;
use super::chance::Draw;
use super::code::{self, Scratch, Work};
use super::decode::{self, unpack};
use super::spread::LONGEST;
use crate::simd::{Kernels, Pair, Scaling};

/// What tells such codings apart. A group has one scale, or none at all.
pub(super) trait Scaled: Code {
    /// What values are multiplied by, by one after the other, under a scale.
    fn factors(self) -> impl Fn(f32) -> [f32; 2];

    /// Rounds values times these factors to codes, one per byte.
    fn round(self, kernels: &Kernels, values: &[f32], to: Pair<'_>, draw: Draw, codes: &mut [u8]);

    /// As [`Scaled::round`]; leaves of each value what its code does not say.
    fn round_left(
        self,
        kernels: &Kernels,
        values: &mut [f32],
        scaling: Scaling<'_>,
        draw: Draw,
        codes: &mut [u8],
    );

    /// The values of codes, one per byte, under the scale of each.
    fn widen(self, kernels: &Kernels, codes: &[u8], scales: &[f32], out: &mut [f32]);
}

pub(super) fn encode(coding: impl Scaled, values: &[f32], codes: &mut [u8], work: Work<'_>) {
    let (Work { kernels, key, place, scratch, .. }, bits) = (work, coding.bits());
    let Scratch { codes: bytes, factors, .. } = scratch;
    let factors = factors.get_or_insert_default();
    code::in_blocks(bits, values, codes, place, |values, out, place| {
        let draw = Draw::of(key, place.drawn as u32);
        code::pack(kernels, (bits, values.len()), bytes, out, |codes| {
            let groups = (coding.grouping(), coding.scales());
            let to = factors.over(kernels, groups, place, values.len(), each_factor(coding));
            coding.round(kernels, values, to, draw, codes);
        });
    });
}

pub(super) fn encode_left(
    coding: impl Scaled,
    values: &mut [f32],
    codes: &mut [u8],
    work: Work<'_>,
) {
    let Work { kernels, key, place, scratch, .. } = work;
    let Scratch { codes: bytes, factors, multiples, .. } = scratch;
    let (groups, len) = ((coding.grouping(), coding.scales()), values.len());
    let (factors, multiples) = (factors.get_or_insert_default(), multiples.get_or_insert_default());
    let scaling = Scaling {
        to: factors.over(kernels, groups, place, len, each_factor(coding)),
        back: multiples.over(kernels, groups, place, len, each_scale(coding))[0],
    };
    code::pack(kernels, (coding.bits(), len), bytes, codes, |codes| {
        coding.round_left(kernels, values, scaling, Draw::of(key, place.drawn as u32), codes);
    });
}

pub(super) fn decode(coding: impl Scaled, codes: &[u8], values: &mut [f32], work: Work<'_>) {
    let Work { kernels, place, scratch, .. } = work;
    let Scratch { codes: bytes, multiples, .. } = scratch;
    let bytes = bytes.get_or_insert([0; LONGEST]);
    let multiples = multiples.get_or_insert_default();
    let (groups, bits) = ((coding.grouping(), coding.scales()), coding.bits());
    decode::in_blocks(bits, codes, values, place, |codes, out, place| {
        let codes = unpack(kernels, bits, codes, &mut bytes[..out.len()]);
        let [scales, _] = multiples.over(kernels, groups, place, out.len(), each_scale(coding));
        coding.widen(kernels, codes, scales, out);
    });
}

/// The factors of groups, one after the other. Without scales values stay as they are.
fn each_factor(coding: impl Scaled) -> impl Fn(&[[u8; 4]], &mut [f32], &mut [f32]) {
    move |scales, one, other| match coding.scales() {
        0 => one.fill(1.0),
        _ => each(scales, one, other, coding.factors()),
    }
}

/// The scales of groups, one after the other.
pub(super) fn each_scale(coding: impl Scaled) -> impl Fn(&[[u8; 4]], &mut [f32], &mut [f32]) {
    move |scales, one, other| match coding.scales() {
        0 => one.fill(1.0),
        _ => each(scales, one, other, |scale| [scale, 1.0]),
    }
}

/// Two numbers of each group, from its scale.
#[inline(always)]
fn each(scales: &[[u8; 4]], one: &mut [f32], other: &mut [f32], numbers: impl Fn(f32) -> [f32; 2]) {
    for ((one, other), scale) in one.iter_mut().zip(other).zip(scales) {
        [*one, *other] = numbers(f32::from_le_bytes(*scale));
    }
}
