//! Computes the scales of groups from their values.

use super::{Grouping, Quantize, Quantizer, Summary, codebook, each_quantizer, store};
use crate::scan::CHUNK;
use crate::simd::Kernels;

/// The scales of one group; how many of them are used is up to the coding.
pub(crate) type Scales = [f32; 8];

/// How the scales of a group follow from its values: what has to be gathered, and the rule.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fit<Q> {
    /// There are no scales.
    None,
    /// One scale, from the largest magnitude.
    Peak(fn(Q, f32) -> f32),
    /// From a [`Summary`] without squares.
    Sides(Rule<Q>),
    /// From the number of values, their squares and the largest magnitude.
    Squares(Rule<Q>),
    /// From all of a [`Summary`].
    Sums(Rule<Q>),
    /// From nothing less than the values.
    Groups(FitGroups<Q>),
}

/// The scales of a group, from what is known of it, and from the magnitude that the sparsifier tells.
pub(crate) type Rule<Q> = fn(Q, &Summary, Option<f32>) -> Scales;

/// Fits groups of so many values in a row, the last of which may be shorter, of a frame with this
/// exponent; gives the bits of the largest magnitude.
pub(crate) type FitGroups<Q> = fn(Q, &Kernels, i16, (&[f32], usize), &mut [[u8; 4]]) -> u32;

/// What has to be gathered for the scales of a group, as [`Fit`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// Nothing: there are no scales.
    None,
    /// The largest magnitude.
    Peak,
    /// A [`Summary`] without squares.
    Sides,
    /// The number of values, their squares and the largest magnitude.
    Squares,
    /// All of a [`Summary`].
    Sums,
    /// Nothing less than the values.
    Values,
}

impl Basis {
    /// The longest group that is read twice in a row: to find its scales, and then to be coded. What is
    /// longer than a cache, or than a buffer of values, is read ahead of all else.
    pub fn longest(self) -> usize {
        if self == Self::Values { LONGEST_FIT } else { CHUNK }
    }
}

/// The longest group whose values are put in a row on the stack.
pub(crate) const LONGEST_FIT: usize = codebook::BLOCK as usize;

/// Groups that are summed up before their scales are found.
const MANY: usize = 32;

/// A single scale.
pub(super) fn one(scale: f32) -> Scales {
    [scale, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
}

impl Quantizer {
    /// What the scales of a group follow from.
    pub(crate) fn basis(self) -> Basis {
        each_quantizer!(self, quantizer => match quantizer.fit() {
            Fit::None => Basis::None,
            Fit::Peak(_) => Basis::Peak,
            Fit::Sides(_) => Basis::Sides,
            Fit::Squares(_) => Basis::Squares,
            Fit::Sums(_) => Basis::Sums,
            Fit::Groups(_) => Basis::Values,
        })
    }

    /// The scales of a group of which this is known.
    pub(crate) fn scales(self, summary: &Summary, told: Option<f32>) -> Scales {
        each_quantizer!(self, quantizer => match quantizer.fit() {
            Fit::None | Fit::Groups(_) => Scales::default(),
            Fit::Peak(rule) => one(rule(quantizer, summary.peak())),
            Fit::Sides(rule) | Fit::Squares(rule) | Fit::Sums(rule) => {
                rule(quantizer, summary, told)
            }
        })
    }

    /// Fits the scales of a group to its values, where sums are enough.
    fn fit(self, kernels: &Kernels, values: &[f32], told: Option<f32>) -> Scales {
        each_quantizer!(self, quantizer => fit(quantizer, kernels, values, told))
    }

    /// Fits the scales of each group of `len` values in a row, the last of which may be shorter, and
    /// writes them down, `each` for a group, of a frame with this exponent. Groups are at most as long
    /// as a [`CHUNK`] where sums are enough. Gives the bits of the largest magnitude.
    pub(crate) fn fit_groups(
        self,
        kernels: &Kernels,
        exponent: i16,
        groups: (&[f32], usize),
        told: Option<f32>,
        scales: (&mut [[u8; 4]], usize),
    ) -> u32 {
        each_quantizer!(self, quantizer => {
            fit_groups(quantizer, (kernels, exponent), groups, told, scales)
        })
    }

    /// Fits the scales of all groups of a list.
    pub(super) fn fit_list(
        self,
        (kernels, exponent): (&Kernels, i16),
        (grouping, positions): (Grouping, Option<&[u32]>),
        values: &[f32],
        told: Option<f32>,
        (scales, each): (&mut [[u8; 4]], usize),
    ) {
        match grouping {
            _ if each == 0 => {}
            Grouping::Ranks(len) if len as usize <= CHUNK || self.basis() == Basis::Values => {
                self.fit_groups(kernels, exponent, (values, len as usize), told, (scales, each));
            }
            grouping => {
                // Columns without entries have scales, too.
                scales.fill([0; 4]);
                grouping.for_each_run(0, values.len(), positions, |group, range| {
                    let fitted = self.fit(kernels, &values[range], told);
                    store(&fitted[..each], &mut scales[group * each..][..each]);
                });
            }
        }
    }
}

fn fit<Q: Quantize>(quantizer: Q, kernels: &Kernels, values: &[f32], told: Option<f32>) -> Scales {
    match quantizer.fit() {
        Fit::None | Fit::Groups(_) => Scales::default(),
        Fit::Peak(rule) => one(rule(quantizer, Summary::of(kernels, values).peak())),
        Fit::Sides(rule) | Fit::Squares(rule) | Fit::Sums(rule) => {
            rule(quantizer, &Summary::of(kernels, values), told)
        }
    }
}

/// Sums up groups of so many values.
type Summarize = fn(&Kernels, &[f32], usize, &mut [Summary]);

fn fit_groups<Q: Quantize>(
    quantizer: Q,
    (kernels, exponent): (&Kernels, i16),
    (values, len): (&[f32], usize),
    told: Option<f32>,
    (scales, each): (&mut [[u8; 4]], usize),
) -> u32 {
    let (summarize, rule): (Summarize, Rule<Q>) = match quantizer.fit() {
        Fit::None => return kernels.peak(values),
        Fit::Peak(rule) => {
            return fit_peaks(kernels, (values, len), scales, |peak| rule(quantizer, peak));
        }
        Fit::Groups(fit) => return fit(quantizer, kernels, exponent, (values, len), scales),
        Fit::Sides(rule) => (Kernels::group_sides, rule),
        Fit::Squares(rule) => (Kernels::group_squares, rule),
        Fit::Sums(rule) => (Kernels::group_summaries, rule),
    };
    let (mut peak, mut summaries) = (0, [Summary::default(); MANY]);
    let spans = values.chunks(MANY * len).zip(scales.chunks_mut(MANY * each));
    for (values, scales) in spans {
        let groups = values.len().div_ceil(len);
        summarize(kernels, values, len, &mut summaries[..groups]);
        for (summary, out) in summaries[..groups].iter().zip(scales.chunks_mut(each)) {
            store(&rule(quantizer, summary, told)[..each], out);
            peak = peak.max(summary.peak);
        }
    }
    peak
}

/// As [`fit_groups`], where the one scale of a group follows from its peak.
fn fit_peaks(
    kernels: &Kernels,
    (values, len): (&[f32], usize),
    scales: &mut [[u8; 4]],
    rule: impl Fn(f32) -> f32,
) -> u32 {
    let (mut peak, mut peaks) = (0, [0; MANY]);
    for (values, scales) in values.chunks(MANY * len).zip(scales.chunks_mut(MANY)) {
        kernels.group_peaks(values, len, &mut peaks);
        for (scale, &bits) in scales.iter_mut().zip(&peaks) {
            *scale = rule(f32::from_bits(bits)).to_le_bytes();
            peak = peak.max(bits);
        }
    }
    peak
}
