//! How a sample is laid out: the sampling plan of the authors' code.

/// Which entries are looked at, and how many of them stand for those wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Distance of the entries in the sample. Odd, so that it does not resonate with rows and
    /// columns whose lengths are powers of two.
    pub stride: usize,
    /// How many entries are in it.
    pub samples: usize,
    /// The threshold is the smallest of so many largest entries of the sample.
    pub above: usize,
}

impl Plan {
    /// A plan for a tensor of `numel` entries: at least two of the sample are above the threshold.
    pub fn new(ratio: f64, sample_ratio: f64, numel: usize) -> Self {
        let fewest = libm::ceil(2.0 / ratio);
        if numel as f64 <= fewest {
            return Self { stride: 1, samples: numel, above: share(ratio, numel) };
        }
        let wanted = (share(sample_ratio, numel) as f64).max(fewest) as usize;
        let mut stride = numel.div_ceil(32 * wanted) * 32 + 1;
        while numel / stride < wanted {
            stride -= 8;
        }
        let samples = numel / stride;
        Self { stride, samples, above: share(ratio, samples) }
    }
}

/// `ceil(ratio * len)`.
pub(super) fn share(ratio: f64, len: usize) -> usize {
    (libm::ceil(ratio * len as f64) as usize).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_that_of_the_published_code() {
        let plan = |numel| {
            let Plan { stride, samples, above } = Plan::new(0.001, 0.01, numel);
            (stride, samples, above)
        };
        assert_eq!(plan(100_000), (49, 2040, 3));
        assert_eq!(plan(2_359_296), (97, 24_322, 25));
        assert_eq!(plan(25_000_000), (97, 257_731, 258));
        assert_eq!(plan(2000), (1, 2000, 2));
        assert_eq!(plan(0), (1, 0, 0));
    }

    #[test]
    fn strides_are_odd_and_leave_enough() {
        for numel in [1, 7, 100, 2001, 65_536, 1 << 20, 3_000_001] {
            for ratio in [1.0, 0.3, 0.01, 1e-3, 1e-4] {
                for sample_ratio in [0.001, 0.01, 0.3, 1.0] {
                    let plan = Plan::new(ratio, sample_ratio, numel);
                    assert!(plan.stride % 2 == 1 && plan.stride * plan.samples <= numel);
                    assert!(plan.samples >= share(sample_ratio, numel), "{numel} {plan:?}");
                    assert!((1..=plan.samples).contains(&plan.above));
                }
            }
        }
    }
}
