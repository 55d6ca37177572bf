//! How many stages the next encode of a tensor takes, learnt from what the last ones achieved.

use super::Distribution;
use super::stages::{Plan, max_stages, split};
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
    /// Sum of the ratios of this window, and how many there are (`Mode::Paper`).
    sum: f64,
    seen: u32,
    /// The correction of the aim, a logarithm (`Mode::Adaptive`).
    bias: f64,
}

/// Steps between two decisions of the published rule.
const WINDOW: u32 = 5;
/// Its tolerance to either side of 1.
const TOLERANCE: f64 = 0.2;

impl Controller {
    /// A controller for a target share `delta` of a tensor's entries.
    pub fn new(mode: Mode, distribution: Distribution, delta: f64) -> Self {
        let max = max_stages(delta);
        let stages = match mode {
            Mode::Fixed(stages) => stages.max(1),
            Mode::Paper => 1,
            Mode::Adaptive => start(distribution, delta).min(max),
        };
        Self { mode, stages, max, sum: 0.0, seen: 0, bias: 0.0 }
    }

    /// The stages of the next encode.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// The next encode of `numel` entries, `target` of which are wanted.
    pub fn plan(&self, target: u64, numel: u64, first_ratio: f64) -> Plan {
        let delta = target as f64 / numel as f64;
        if self.mode != Mode::Adaptive {
            return Plan::fixed(split(delta, self.stages, first_ratio));
        }
        let aim = libm::exp(-self.bias);
        Plan::aimed(split((delta * aim).min(1.0), self.stages, first_ratio), target as f64 * aim)
    }

    /// Learns from an encode: entries above the fitted threshold, before any correction of their
    /// number, over entries wanted.
    pub fn observe(&mut self, achieved_over_target: f64) {
        match self.mode {
            Mode::Fixed(_) => {}
            Mode::Paper => self.observe_paper(achieved_over_target),
            Mode::Adaptive => {
                let miss = libm::log(achieved_over_target.clamp(0.25, 4.0));
                self.bias = (self.bias + 0.3 * miss).clamp(-1.5, 1.5);
            }
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
            ("bias", self.bias),
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
        let (stages, sum, seen, bias) = (get("stages")?, get("sum")?, get("seen")?, get("bias")?);
        self.stages = stages as u32;
        self.sum = sum;
        self.seen = seen as u32;
        self.bias = bias;
        Ok(())
    }
}

fn start(distribution: Distribution, delta: f64) -> u32 {
    match distribution {
        Distribution::Exponential => 3,
        _ if delta < 5e-4 => 4,
        _ => 3,
    }
}
