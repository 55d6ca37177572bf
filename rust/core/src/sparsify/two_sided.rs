//! Adaptive quantization: one threshold for each sign.
//!
//! Dryden, Jacobs, Moon and Van Essen, "Communication Quantization for Data-Parallel Training of
//! Deep Neural Networks", MLHPC 2016, section 3.2. One entry in `proportion` of a sample is kept,
//! the largest ones. The smallest kept entry of each sign is the threshold for that sign; if a sign
//! has none, the other threshold is mirrored. Entries at or beyond their threshold are sent. Both
//! thresholds are for the whole matrix.
//!
//! A sample can be far off, so at most `4 n / proportion` entries are sent, the largest. (The authors'
//! code drops the last columns, whatever they contain.) If the sample has too few non-zeros, that code
//! sends nothing; here the largest non-zeros are sent, because a sparse tensor would otherwise never
//! be sent.

use super::{Facts, Scanned, Selected, Sparsify, Tracker, Unread, Wanted, largest, topk};
use crate::part::{Options, Part};
use crate::scan::Request;
use crate::simd::peak::NON_FINITE;
use crate::{Error, Result};

/// Two thresholds, for a share of one entry in `proportion`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TwoSided {
    /// One entry in so many is wanted, at least 1.
    pub proportion: f64,
    /// How many entries are drawn, with replacement, of a tensor that has more than that; none for
    /// exact thresholds.
    pub sample: Option<u32>,
    /// What the sample depends on, with the tensor and the step.
    pub seed: u64,
}

/// So many times the wanted number may go.
const MOST: f64 = 4.0;

impl TwoSided {
    /// A sample of 1024 entries, as published.
    pub fn new(proportion: f64) -> Self {
        Self { proportion, sample: Some(1024), seed: 0 }
    }

    /// One in `proportion` of `len` entries, and one at least.
    fn share(self, len: usize) -> usize {
        ((len as f64 / self.proportion) as usize).max(1).min(len)
    }

    /// Whether there is a sample, and not all of the tensor.
    fn sample(self, numel: usize) -> Option<u32> {
        self.sample.filter(|&sample| numel > sample as usize)
    }
}

impl Part for TwoSided {
    const KIND: &'static str = "two_sided";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            proportion: options.get("proportion")?,
            sample: options.get("sample")?,
            seed: options.get("seed")?,
        })
    }

    fn check(self) -> Result<()> {
        let Self { proportion, sample, .. } = self;
        if !(proportion >= 1.0 && proportion.is_finite()) {
            return Err(Error::argument(format!(
                "proportion must be at least 1, got {proportion}"
            )));
        }
        if sample == Some(0) {
            return Err(Error::argument("sample must be at least 1, got 0"));
        }
        Ok(())
    }

    fn sized_as(self, other: Self) -> Self {
        Self { proportion: other.proportion, ..self }
    }

    fn examples() -> Vec<Self> {
        let exact = Self { sample: None, ..Self::new(20.0) };
        vec![Self::new(32.0), exact, Self { sample: Some(50), seed: 5, ..Self::new(2.5) }]
    }
}

impl Sparsify for TwoSided {
    fn facts(self) -> Facts {
        Facts { seed: self.sample.map(|_| self.seed), ..Facts::SELECTED }
    }

    fn max_count(self, numel: usize) -> u64 {
        let most = MOST * numel as f64 / self.proportion;
        (most as u64).max(1).min(numel as u64)
    }

    fn scratch(self, numel: usize) -> usize {
        self.sample.map_or(0, |sample| numel.min(sample as usize))
    }

    fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        let numel = unread.numel();
        let Some(sample) = self.sample(numel) else {
            return topk::request(self.share(numel) as u64, unread).into();
        };
        let Unread { tensor, key, scratch, .. } = unread;
        scratch.clear();
        let drawn = (0..sample).map(|j| ((u64::from(key.bits(j)) * numel as u64) >> 32) as usize);
        scratch.extend(drawn.map(|i| {
            // What is not finite is reported by the scan; here it must not hide the rest.
            let bits = tensor.at(i).to_bits();
            if bits & 0x7fff_ffff >= NON_FINITE { 0 } else { bits }
        }));
        // Equals of the last one kept are kept too: which of them came last must not matter.
        let magnitude = |bits: u32| bits & 0x7fff_ffff;
        let rank = self.share(sample as usize) - 1;
        let (_, last, _) = scratch.select_nth_unstable_by_key(rank, |&bits| !magnitude(bits));
        let least = magnitude(*last);
        let kept = scratch.iter().filter(|&&bits| magnitude(bits) >= least);
        let thresholds = thresholds(kept.map(|&bits| f32::from_bits(bits)));
        let smaller = thresholds.0.min(-thresholds.1);
        let request = Request::above(smaller.next_down().max(0.0), usize::MAX);
        Wanted { request, thresholds: Some(thresholds) }
    }

    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let numel = scanned.numel();
        let target = self.share(numel) as u64;
        let (positive, negative) = match scanned.thresholds {
            Some(thresholds) => thresholds,
            None => exact(target, tracker, scanned),
        };
        let candidates = scanned.scanner.candidates_mut();
        candidates.keep_outside(negative, positive);
        let mut threshold = positive.min(-negative);
        if candidates.len() as u64 > self.max_count(numel) {
            let kernels = scanned.scanner.kernels;
            let most = self.max_count(numel);
            threshold =
                largest::narrow(scanned.scanner.candidates_mut(), most, kernels, scanned.scratch);
        }
        Selected { target: Some(target), threshold, magnitude: None }
    }
}

/// The thresholds of the whole tensor; the largest entries are kept.
fn exact(k: u64, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> (f32, f32) {
    let kept = largest::keep(k, scanned);
    topk::track(k, scanned.numel(), kept, tracker);
    thresholds(scanned.scanner.candidates().values().iter().copied())
}

/// The smallest entry of each sign, mirrored where a sign has none. Zeros have no sign: with nothing
/// else, every non-zero is beyond the thresholds.
fn thresholds(kept: impl Iterator<Item = f32>) -> (f32, f32) {
    let (mut positive, mut negative, mut zero) = (f32::INFINITY, f32::NEG_INFINITY, false);
    for value in kept {
        if value > 0.0 {
            positive = positive.min(value);
        } else if value < 0.0 {
            negative = negative.max(value);
        } else {
            zero = true;
        }
    }
    // The smaller of zeros of both signs is one or the other, depending on the machine: mirrored they
    // have the same.
    match (positive.is_finite(), negative.is_finite()) {
        _ if zero => (0.0, -0.0),
        (true, false) => (positive, -positive),
        (false, true) => (-negative, negative),
        (true, true) => (positive, negative),
        (false, false) => (0.0, -0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::thresholds;

    #[test]
    fn a_missing_sign_mirrors_the_other() {
        let of = |kept: &[f32]| thresholds(kept.iter().copied());
        assert_eq!(of(&[3.0, -2.0, 5.0, -4.0]), (3.0, -2.0));
        assert_eq!(of(&[3.0, 5.0]), (3.0, -3.0));
        assert_eq!(of(&[-3.0, -5.0]), (3.0, -3.0));
        assert_eq!(of(&[-3.0, 0.0]), (0.0, 0.0));
        assert_eq!(of(&[]), (0.0, 0.0));
    }
}
