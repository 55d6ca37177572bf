//! How a target share is split over the stages of one encode.

/// The default share that stage 1 keeps where there is more than one stage (SIDCo's `FIRST_RATIO`).
pub const FIRST_RATIO: f64 = 0.25;

/// The shares of one multi-stage fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageRatios {
    /// What stage 1 keeps of all entries.
    pub first: f64,
    /// What each later stage keeps of the survivors of the one before.
    pub rest: f64,
    /// Stages in all, at least 1: `first * rest^(stages - 1)` is the target share.
    pub stages: u32,
}

/// SIDCo's split: stage 1 keeps `first_ratio`, the others share what is left equally in logarithm.
///
/// One stage takes `delta` at once where `stages` is 1, and also where `delta >= first_ratio`:
/// later stages would then have to move the threshold down.
pub fn split(delta: f64, stages: u32, first_ratio: f64) -> StageRatios {
    if stages <= 1 || delta >= first_ratio {
        return StageRatios { first: delta, rest: 1.0, stages: 1 };
    }
    StageRatios { first: first_ratio, rest: root(delta / first_ratio, stages - 1), stages }
}

/// The most stages that are ever useful for a share: each then keeps about half of the last.
pub fn max_stages(delta: f64) -> u32 {
    let halvings = libm::ceil(-libm::log2(delta));
    // At most 63 for any positive share of a tensor; a cast of NaN or a negative is 0.
    (halvings as u32).clamp(1, 63)
}

/// The stages of one encode, handed out one by one.
///
/// A plan that re-aims asks each later stage for the share that leads from the survivors it really
/// has to the target, so that only the error of the last stage remains. The published split asks
/// every stage for the same share and multiplies the errors of all stages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    ratios: StageRatios,
    /// Entries aimed at, where later stages re-aim.
    aim: Option<f64>,
    left: u32,
}

impl Plan {
    /// The published split of `ratios`.
    pub fn fixed(ratios: StageRatios) -> Self {
        Self { ratios, aim: None, left: ratios.stages - 1 }
    }

    /// The same first stage, then always towards `entries` selected entries.
    pub fn aimed(ratios: StageRatios, entries: f64) -> Self {
        Self { ratios, aim: Some(entries), left: ratios.stages - 1 }
    }

    /// The share for [`first_threshold`](super::first_threshold).
    pub fn first(&self) -> f64 {
        self.ratios.first
    }

    /// The share `rho` for the next [`tail_threshold`](super::tail_threshold), given how many
    /// entries exceed the threshold so far; `None` when the stages are done.
    ///
    /// Call it once for each stage; if the tail cannot be fitted, stop.
    pub fn next(&mut self, survivors: u64) -> Option<f64> {
        if self.left == 0 {
            return None;
        }
        let rho = match self.aim {
            None => self.ratios.rest,
            Some(entries) => root(entries / survivors as f64, self.left),
        };
        self.left -= 1;
        // Too few survive already: nothing is left for a higher threshold. Also refuses NaN.
        (rho < 1.0).then_some(rho)
    }
}

/// `x^(1/k)`.
fn root(x: f64, k: u32) -> f64 {
    if k == 1 { x } else { libm::pow(x, 1.0 / k as f64) }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_RATIO, Plan, max_stages, split};

    #[test]
    fn shares_multiply_to_the_target() {
        for delta in [0.1, 0.01, 1e-3, 1e-4, 0.2499] {
            for stages in 2..12 {
                let s = split(delta, stages, FIRST_RATIO);
                assert_eq!((s.first, s.stages), (0.25, stages));
                let all = s.first * libm::pow(s.rest, (stages - 1) as f64);
                assert!((all / delta - 1.0).abs() < 1e-12, "{delta} {stages}");
                assert!(s.rest < 1.0);
            }
        }
    }

    #[test]
    fn one_stage_takes_the_target_at_once() {
        for (delta, stages) in [(0.01, 1), (0.01, 0), (0.25, 3), (0.5, 3), (1.0, 9)] {
            let s = split(delta, stages, FIRST_RATIO);
            assert_eq!((s.first, s.rest, s.stages), (delta, 1.0, 1));
            assert_eq!(Plan::fixed(s).next(1000), None);
        }
    }

    #[test]
    fn stages_are_clamped_as_published() {
        assert_eq!([0.1, 0.01, 1e-3, 1e-4].map(max_stages), [4, 7, 10, 14]);
        assert_eq!([1.0, 0.5, f64::NAN, 0.0].map(max_stages), [1, 1, 1, 63]);
    }

    #[test]
    fn a_fixed_plan_hands_out_equal_shares() {
        let mut plan = Plan::fixed(split(0.001, 3, FIRST_RATIO));
        let rho = libm::pow(0.004, 0.5);
        assert_eq!(plan.first(), 0.25);
        assert_eq!([plan.next(7), plan.next(1 << 40), plan.next(9)], [Some(rho), Some(rho), None]);
    }

    #[test]
    fn an_aimed_plan_makes_up_for_earlier_stages() {
        let mut plan = Plan::aimed(split(0.001, 3, FIRST_RATIO), 100.0);
        let rho = plan.next(40_000).unwrap();
        assert!((rho - 0.05).abs() < 1e-15);
        assert_eq!(plan.next(4_000), Some(100.0 / 4_000.0));
        assert_eq!(plan.next(150), None);
        // Nothing is left to raise the threshold for.
        let mut plan = Plan::aimed(split(0.001, 3, FIRST_RATIO), 100.0);
        assert_eq!(plan.next(100), None);
        let mut plan = Plan::aimed(split(0.001, 3, FIRST_RATIO), 100.0);
        assert_eq!(plan.next(0), None);
    }
}
