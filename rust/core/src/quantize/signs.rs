//! One bit per entry, its sign, and what either sign stands for: what such codings have in common.

use super::Code;
use super::code::Work;
use super::decode::{self, unpack};
use super::spread::LONGEST;

/// What tells such codings apart.
pub(super) trait Signs: Code {
    /// What a one and what a zero stands for, of each group, from its scales.
    fn sides(self, scales: &[[u8; 4]], ones: &mut [f32], zeros: &mut [f32]);
}

pub(super) fn encode(values: &[f32], codes: &mut [u8], work: &Work<'_>) {
    // Signs are the same whatever the scales are.
    work.kernels.sign_bits(values, codes);
}

pub(super) fn encode_left(
    coding: impl Signs,
    values: &mut [f32],
    codes: &mut [u8],
    work: Work<'_>,
) {
    let Work { kernels, place, scratch, .. } = work;
    let groups = (coding.grouping(), coding.scales());
    let multiples = scratch.multiples.get_or_insert_default();
    let pair = multiples.over(kernels, groups, place, values.len(), |scales, ones, zeros| {
        coding.sides(scales, ones, zeros);
    });
    kernels.sign_bits_left(values, pair, codes);
}

pub(super) fn decode(coding: impl Signs, codes: &[u8], values: &mut [f32], work: Work<'_>) {
    let Work { kernels, place, scratch, .. } = work;
    let bytes = scratch.codes.get_or_insert([0; LONGEST]);
    let multiples = scratch.multiples.get_or_insert_default();
    let groups = (coding.grouping(), coding.scales());
    decode::in_blocks(coding.bits(), codes, values, place, |codes, out, place| {
        let codes = unpack(kernels, coding.bits(), codes, &mut bytes[..out.len()]);
        let pair = multiples.over(kernels, groups, place, out.len(), |scales, ones, zeros| {
            coding.sides(scales, ones, zeros);
        });
        kernels.one_of_two(codes, pair, out);
    });
}
