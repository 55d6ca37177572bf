//! How many stages the next encode of a tensor takes, learnt from what the last ones achieved.

use super::Distribution;
use super::stages::{FIRST_RATIO, Plan, max_stages, split};
use crate::error::{Error, Result};

/// Who chooses the number of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Always this many, at least 1, split as published.
    Fixed(u32),
    /// The published rule: every 5 steps, one stage less if the mean achieved/target ratio is
    /// above 1.2, one more if it is below 0.8.
    ///
    /// It assumes that fewer stages select fewer entries. That holds for tails lighter than the
    /// law fitted; on heavier ones the ratio falls as stages are added, and the rule, which starts
    /// from one stage, takes away what it has not got: it stays at 4 to 22 times the target (layers
    /// of different scale, Student's t, with the exponential law at a ratio of 0.001).
    Paper,
    /// Ours: see [`Controller`].
    #[default]
    Adaptive,
}

/// The stage controller of one tensor. It is plain data: clone it to roll back.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    mode: Mode,
    stages: u32,
    max: u32,
    /// Sum of the ratios of this window (`Mode::Paper`).
    sum: f64,
    /// Ratios in that sum (`Mode::Paper`), or running misses of the band (`Mode::Adaptive`).
    seen: u32,
    /// Logarithm of what is aimed at over the target (`Mode::Adaptive`).
    aim: f64,
}

/// Steps between two decisions of the published rule.
const WINDOW: u32 = 5;
/// Its tolerance to either side of 1.
const TOLERANCE: f64 = 0.2;

/// The share of a miss, in logarithm, that the next aim makes up for.
const GAIN: f64 = 0.25;
/// No single step counts for more than this miss, however wild it was.
const WILD: f64 = 0.5;
/// The aim stays within a factor `e^1.5` of the target.
const FARTHEST: f64 = 1.5;
/// A miss beyond this is out of the band 0.8 to 1.25.
const BAND: f64 = 0.223;

impl Controller {
    /// A controller for a law and a target share `delta` of a tensor's entries.
    pub fn new(mode: Mode, distribution: Distribution, delta: f64) -> Self {
        let max = max_stages(delta);
        let (stages, max) = match mode {
            Mode::Fixed(stages) => (stages.max(1), stages.max(1)),
            Mode::Paper => (1, max),
            Mode::Adaptive => {
                let start = start(distribution, delta);
                (start, start + 3)
            }
        };
        Self { mode, stages, max, sum: 0.0, seen: 0, aim: 0.0 }
    }

    /// The stages of the next encode.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// The next encode of `numel` entries, `target` of which are wanted.
    pub fn plan(&self, target: u64, numel: u64, first_ratio: f64) -> Plan {
        let target = target as f64;
        match self.mode {
            Mode::Adaptive => {
                Plan::aimed(target * libm::exp(self.aim), numel, self.stages, first_ratio)
            }
            _ => Plan::fixed(split(target / numel as f64, self.stages, first_ratio)),
        }
    }

    /// Learns from an encode: entries above the fitted threshold, before any correction of their
    /// number, over entries wanted.
    pub fn observe(&mut self, achieved_over_target: f64) {
        match self.mode {
            Mode::Fixed(_) => {}
            Mode::Paper => self.observe_paper(achieved_over_target),
            Mode::Adaptive => self.observe_adaptive(achieved_over_target),
        }
    }

    fn observe_adaptive(&mut self, ratio: f64) {
        let miss = libm::log(ratio.clamp(1e-6, 1e6));
        self.aim = (self.aim - GAIN * miss.clamp(-WILD, WILD)).clamp(-FARTHEST, FARTHEST);
        if miss.abs() <= BAND {
            self.seen = 0;
            return;
        }
        self.seen += 1;
        if self.seen == 3 {
            self.stages = (self.stages + 1).min(self.max);
            self.seen = 0;
        }
    }

    fn observe_paper(&mut self, ratio: f64) {
        self.sum += ratio;
        self.seen += 1;
        if self.seen < WINDOW {
            return;
        }
        let mean = self.sum / WINDOW as f64;
        if mean > 1.0 + TOLERANCE {
            self.stages = (self.stages - 1).max(1);
        } else if mean < 1.0 - TOLERANCE {
            self.stages = (self.stages + 1).min(self.max);
        }
        (self.sum, self.seen) = (0.0, 0);
    }

    /// All that changes, by name, for a checkpoint.
    pub fn scalars(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("stages", self.stages as f64),
            ("sum", self.sum),
            ("seen", self.seen as f64),
            ("aim", self.aim),
        ]
    }

    /// Restores what [`Self::scalars`] gave, of a controller of the same mode and target.
    pub fn load_scalars(&mut self, scalars: &[(String, f64)]) -> Result<()> {
        let get = |name: &str| {
            scalars
                .iter()
                .find(|(have, _)| have == name)
                .map(|&(_, value)| value)
                .filter(|value| value.is_finite())
                .ok_or_else(|| Error::argument(format!("controller state lacks a finite '{name}'")))
        };
        let (stages, sum, seen, aim) = (get("stages")?, get("sum")?, get("seen")?, get("aim")?);
        self.stages = stages as u32;
        self.sum = sum;
        self.seen = seen as u32;
        self.aim = aim;
        Ok(())
    }
}

/// Stages of an aimed plan to begin with: a quarter first, a half last, and between them as many as
/// it takes for none to reach further than the law can be trusted to.
fn start(distribution: Distribution, delta: f64) -> u32 {
    let reach = match distribution {
        Distribution::Exponential => 13.0,
        Distribution::Gamma | Distribution::GeneralizedPareto => 130.0,
    };
    let between = libm::log(0.5 * FIRST_RATIO / delta) / libm::log(reach);
    2 + (libm::ceil(between) as u32).clamp(1, 16)
}
