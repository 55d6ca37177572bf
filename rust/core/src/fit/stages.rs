//! How the target fraction is divided over the stages of one encode.

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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    first: f64,
    later: Later,
    left: u32,
}

/// What the stages after the first ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Later {
    /// This share of the survivors.
    Share(f64),
    /// The share of the survivors that leads to this many entries.
    Entries(f64),
}

/// What each of the last stages of an aimed plan keeps. A quantile that near is right for nearly any
/// distribution, and the number of entries it starts from is known, not fitted.
const LAST_RATIO: f64 = 0.7;
/// How many last stages those are: the second corrects the random error of the first, which
/// matters if few entries are wanted.
const LAST: u32 = 2;

impl Plan {
    /// The published split: every stage after the first asks for the same share, and the errors
    /// of all stages multiply.
    pub fn fixed(ratios: StageRatios) -> Self {
        Self { first: ratios.first, later: Later::Share(ratios.rest), left: ratios.stages - 1 }
    }

    /// A split that corrects itself: every stage after the first asks for the share that leads
    /// from the survivors it really has to `entries` of `numel`, so that the errors of all stages
    /// but the last cancel, and the last has little left to do.
    ///
    /// The last two stages keep 0.7 each, and those between the first and them share the rest.
    pub fn aimed(entries: f64, numel: u64, stages: u32, first_ratio: f64) -> Self {
        let delta = (entries / numel as f64).min(1.0);
        if stages <= 1 {
            return Self { first: delta, later: Later::Entries(entries), left: 0 };
        }
        // Room above the target, also where that is as large as the first share.
        let first = first_ratio.max((2.0 * delta).min(0.5 * (1.0 + delta)));
        Self { first, later: Later::Entries(entries), left: stages - 1 }
    }

    /// The share for [`first_threshold`](super::first_threshold).
    pub fn first(&self) -> f64 {
        self.first
    }

    /// Stages of a plan that has not begun.
    pub fn stages(&self) -> u32 {
        self.left + 1
    }

    /// Entries that a plan for `numel` which has not begun expects above the threshold of `stage`
    /// (1 is the first; past the last, the last).
    pub fn expected(mut self, numel: u64, stage: u32) -> f64 {
        let mut above = self.first * numel as f64;
        for _ in 1..stage {
            let Some(rho) = self.next(above as u64) else { break };
            above *= rho;
        }
        above
    }

    /// The share `rho` for the next [`tail_threshold`](super::tail_threshold), given how many
    /// entries exceed the threshold so far; `None` when the stages are done.
    ///
    /// Call it once for each stage; if the tail cannot be fitted, stop.
    pub fn next(&mut self, survivors: u64) -> Option<f64> {
        if self.left == 0 {
            return None;
        }
        let rho = match self.later {
            Later::Share(rho) => rho,
            Later::Entries(entries) => self.towards(entries / survivors as f64),
        };
        self.left -= 1;
        // Too few survive already: nothing is left for a higher threshold. Also refuses NaN.
        (rho < 1.0).then_some(rho)
    }

    /// The next of the stages left, which together keep `share`.
    fn towards(&self, share: f64) -> f64 {
        let equal = root(share, self.left);
        if self.left <= LAST || equal > LAST_RATIO {
            return equal;
        }
        root(share / libm::pow(LAST_RATIO, LAST as f64), self.left - LAST)
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
        let plan = || Plan::aimed(100.0, 100_000, 5, FIRST_RATIO);
        let near = |got: Option<f64>, want: f64| (got.unwrap() / want - 1.0).abs() < 1e-12;
        let mut steady = plan();
        assert_eq!((steady.first(), steady.stages()), (0.25, 5));
        // 20000 -> 2020 -> 204 -> 143 -> 100, as long as all goes to plan.
        assert!(near(steady.next(20_000), libm::sqrt(100.0 / 0.49 / 20_000.0)));
        assert!(near(steady.next(2_020), 100.0 / 0.49 / 2_020.0));
        assert!(near(steady.next(204), libm::sqrt(100.0 / 204.0)));
        assert!(near(steady.next(143), 100.0 / 143.0));
        assert_eq!(steady.next(100), None);
        for (stage, want) in [25_000.0, 2_258.8, 204.1, 142.9, 100.0, 100.0].iter().enumerate() {
            let got = plan().expected(100_000, stage as u32 + 1);
            assert!((got / want - 1.0).abs() < 1e-2, "{stage}: {got}");
        }
        // It does not: too few survive, then too many.
        let mut missed = plan();
        assert!(near(missed.next(300), libm::pow(1.0 / 3.0, 0.25)));
        assert!(near(missed.next(280), libm::pow(100.0 / 280.0, 1.0 / 3.0)));
        assert!(near(missed.next(1_000), libm::sqrt(0.1)));
        assert!(near(missed.next(1_000), 0.1));
        // Nothing is left to raise the threshold for.
        for survivors in [100, 99, 0] {
            assert_eq!(plan().next(survivors), None);
        }
    }

    #[test]
    fn an_aimed_plan_leaves_room_above_any_target() {
        for (entries, stages, first) in [
            (1.0, 3, 0.25),
            (100.0, 3, 0.25),
            (150.0, 3, 0.3),
            (500.0, 2, 0.75),
            (1000.0, 2, 1.0),
            (2000.0, 2, 1.0),
            (300.0, 1, 0.3),
        ] {
            assert_eq!(Plan::aimed(entries, 1000, stages, FIRST_RATIO).first(), first);
        }
    }
}
