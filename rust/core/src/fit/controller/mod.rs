//! How many stages the next encode of a tensor has, and what they aim at, based on what the last
//! encodes achieved.

use super::Distribution;
use super::stages::{FIRST_RATIO, Plan, max_stages, split};
use crate::error::{Error, Result};

/// Who chooses the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Always this many, at least 1, split as published.
    Fixed(u32),
    /// The published rule (MLSys 2021, "Adapt Stages"): every 5 steps, one stage less if the mean
    /// achieved/target ratio is above 1.2, one more if it is below 0.8.
    ///
    /// It assumes that fewer stages select fewer entries. That holds for tails lighter than the
    /// fitted distribution. On heavier ones the ratio falls as stages are added, and the rule, which
    /// starts from one stage, tries to remove stages that it does not have. It stays at 4 to 22 times
    /// the target (layers of different scale, Student's t; exponential distribution at a ratio of
    /// 0.001).
    Paper,
    /// Ours, described at [`Controller`].
    #[default]
    Adaptive,
    /// Ours, without the body of the distribution: the first stage is a bound tracked from step to step
    /// that about twice the wanted entries exceed, and only the tail above it is fitted. Costs one
    /// read and no moments; in a step without history, or after a jump, selects exactly.
    Tracking,
}

/// The stage controller of one tensor. It is plain data: clone it to roll back.
///
/// [`Mode::Adaptive`] differs from the published controller in what there is to control. Its plans
/// aim every stage at the target from the survivors there really are ([`Plan::aimed`]), so that of
/// all errors only that of the last, short stage is left: a few per cent, on every distribution
/// tried, from the first step on. What remains is a factor that changes slowly with the distribution
/// of the tensor. An integrator in the logarithm removes it: a quarter of each miss, more of one that
/// repeats, and never more than an eighth for a single outlier. Scale does not matter. If the aim
/// must be far from the target, early stages miss by so much that the last ones cannot make up for
/// it; then a stage is added. It is kept, since it costs next to nothing.
///
/// Some tensors have no threshold that a fit can find: a gap in the distribution just where the target
/// is, or a tail so heavy that the fits of two steps have little in common. There a fit would be paid
/// for in vain and the exact selection after it. Where misses outnumber hits by [`GIVE_UP`], the
/// controller therefore [rests](Self::rests): the next [`REST`] encodes select exactly at once. Then
/// one fit is tried, and while such trials miss, each rest is twice as long as the one before, up to
/// [`REST`] times `2^`[`LONGEST`]. What is sent does not change by that, only what it costs.
///
/// `examples/achieved_ratio.rs` prints what this comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Controller {
    mode: Mode,
    stages: u32,
    max: u32,
    /// The last ratio observed.
    last: f64,
    /// Sum of the ratios of this window (`Mode::Paper`).
    sum: f64,
    /// Ratios in that sum (`Mode::Paper`), or misses of the band in a row (`Mode::Adaptive`).
    seen: u32,
    /// Logarithm of what is aimed at over the target (`Mode::Adaptive`).
    aim: f64,
    /// Fits outside the band less fits inside, never below 0.
    misses: u32,
    /// Encodes that still select exactly before a fit is tried again.
    rest: u32,
    /// Rests since fits last were good, up to [`LONGEST`].
    rests: u32,
}

/// Steps between two decisions of the published rule.
const WINDOW: u32 = 5;
/// Its tolerance to either side of 1.
const TOLERANCE: f64 = 0.2;

/// The share of a miss, in logarithm, that the next aim makes up for.
const GAIN: f64 = 0.25;
/// The same for a miss of the band that follows another: then the distribution has changed.
const GAIN_AGAIN: f64 = 0.6;
/// No single step counts for more than this miss, however wild it was.
const WILD: f64 = 0.5;
/// The aim stays within a factor `e^1.5` of the target.
const FARTHEST: f64 = 1.5;
/// Misses beyond this are out of the band 0.8 to 1.25 (`ln 1.25`).
const BAND: f64 = 0.223;
/// Misses of the band in a row that add a stage.
const PATIENCE: u32 = 3;
/// An aim that adds a stage: early stages are so far off that the last ones cannot make up for it.
const CROOKED: f64 = 0.25;
/// Stages that can be added.
const EXTRA: u32 = 4;

/// By how much misses have to outnumber hits for a rest. More than it takes to add all stages.
const GIVE_UP: u32 = 16;
/// Encodes in the first rest.
const REST: u32 = 64;
/// Doublings from there to the longest.
const LONGEST: u32 = 4;

impl Controller {
    /// A controller for a distribution and a target fraction `delta` of a tensor's entries.
    pub fn new(mode: Mode, distribution: Distribution, delta: f64) -> Self {
        let (stages, max) = match mode {
            Mode::Fixed(stages) => (stages.max(1), stages.max(1)),
            Mode::Paper => (1, max_stages(delta)),
            Mode::Adaptive => {
                let start = start(distribution, delta);
                (start, start + EXTRA)
            }
            // The bound, and two short stages.
            Mode::Tracking => (3, 3),
        };
        Self {
            mode,
            stages,
            max,
            last: 1.0,
            sum: 0.0,
            seen: 0,
            aim: 0.0,
            misses: 0,
            rest: 0,
            rests: 0,
        }
    }

    /// The stages of the next encode.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// The ratio last given to [`Self::observe`]; 1 before the first.
    pub fn last(&self) -> f64 {
        self.last
    }

    /// The next encode of `numel` entries, `target` of which are wanted.
    pub fn plan(&self, target: u64, numel: u64, first_ratio: f64) -> Plan {
        let target = target as f64;
        match self.mode {
            Mode::Fixed(_) | Mode::Paper => {
                Plan::fixed(split(target / numel as f64, self.stages, first_ratio))
            }
            Mode::Adaptive | Mode::Tracking => {
                Plan::aimed(target * libm::exp(self.aim), numel, self.stages, first_ratio)
            }
        }
    }

    /// Learns from an encode: entries above the fitted threshold, before any correction of their
    /// number, over entries wanted. What is no number is no observation.
    pub fn observe(&mut self, achieved_over_target: f64) {
        if achieved_over_target.is_nan() {
            return;
        }
        self.last = achieved_over_target.clamp(0.0, f64::MAX);
        match self.mode {
            Mode::Fixed(_) => {}
            Mode::Paper => self.observe_paper(),
            Mode::Adaptive | Mode::Tracking => self.observe_adaptive(),
        }
    }

    /// Learns whether a fit was of use: whether there was one and what it gave lay within the band.
    pub fn judge(&mut self, inside: bool) {
        if inside {
            self.misses = self.misses.saturating_sub(1);
            self.rests = if self.misses == 0 { 0 } else { self.rests };
            return;
        }
        self.misses += 1;
        if self.misses == GIVE_UP {
            self.misses -= 1;
            self.rest = REST << self.rests;
            self.rests = (self.rests + 1).min(LONGEST);
            // What it came to by missing says nothing of what there will be after the rest.
            self.aim = 0.0;
        }
    }

    /// Whether the next encode is to select exactly, without a fit: tell [`Self::rested`] of it.
    pub fn rests(&self) -> bool {
        self.rest > 0
    }

    /// Counts an encode that selected exactly because the controller rests.
    pub fn rested(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    fn observe_paper(&mut self) {
        self.sum += self.last;
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

    fn observe_adaptive(&mut self) {
        let miss = libm::log(self.last.clamp(1e-6, 1e6));
        let gain = if self.seen > 0 && miss.abs() > BAND { GAIN_AGAIN } else { GAIN };
        self.aim = (self.aim - gain * miss.clamp(-WILD, WILD)).clamp(-FARTHEST, FARTHEST);
        self.seen = if miss.abs() > BAND { (self.seen + 1).min(PATIENCE) } else { 0 };
        if self.stages < self.max && (self.seen >= PATIENCE || self.aim.abs() > CROOKED) {
            self.stages += 1;
            self.seen = 0;
            self.aim *= 0.5;
        }
    }

    /// All that changes, by name, for a checkpoint.
    pub fn scalars(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("stages", self.stages as f64),
            ("last", self.last),
            ("sum", self.sum),
            ("seen", self.seen as f64),
            ("aim", self.aim),
            ("misses", f64::from(self.misses)),
            ("rest", f64::from(self.rest)),
            ("rests", f64::from(self.rests)),
        ]
    }

    /// Restores what [`Self::scalars`] gave, of a controller of the same mode, distribution and
    /// target.
    /// Checks all of it before it changes anything.
    pub fn load_scalars(&mut self, scalars: &[(String, f64)]) -> Result<()> {
        let lowest = if let Mode::Fixed(_) = self.mode { self.max } else { 1 };
        let stages = whole(scalars, "stages", lowest, self.max)?;
        let last = number(scalars, "last", 0.0, f64::MAX)?;
        let sum = number(scalars, "sum", 0.0, f64::MAX)?;
        let seen = whole(scalars, "seen", 0, WINDOW - 1)?;
        let aim = number(scalars, "aim", -FARTHEST, FARTHEST)?;
        let misses = whole(scalars, "misses", 0, GIVE_UP - 1)?;
        let rest = whole(scalars, "rest", 0, REST << LONGEST)?;
        let rests = whole(scalars, "rests", 0, LONGEST)?;
        *self = Self { stages, last, sum, seen, aim, misses, rest, rests, ..*self };
        Ok(())
    }
}

/// The scalar of this name, if it lies within these bounds.
fn number(scalars: &[(String, f64)], name: &str, low: f64, high: f64) -> Result<f64> {
    let value = scalars.iter().find(|(have, _)| have == name).map(|&(_, value)| value);
    match value {
        Some(value) if (low..=high).contains(&value) => Ok(value),
        Some(value) => Err(Error::argument(format!(
            "stage controller: '{name}' must be in [{low}, {high}], got {value}"
        ))),
        None => Err(Error::argument(format!("stage controller: the state has no '{name}'"))),
    }
}

/// The same for a whole number.
fn whole(scalars: &[(String, f64)], name: &str, low: u32, high: u32) -> Result<u32> {
    let value = number(scalars, name, f64::from(low), f64::from(high))?;
    if libm::trunc(value) == value {
        return Ok(value as u32);
    }
    Err(Error::argument(format!("stage controller: '{name}' must be a whole number, got {value}")))
}

/// Stages of an aimed plan to begin with: the first, two short last ones, and between them as many
/// as needed so that none reaches further than the fitted distribution can be trusted.
fn start(distribution: Distribution, delta: f64) -> u32 {
    let reach = match distribution {
        Distribution::Exponential => 13.0,
        Distribution::Gamma | Distribution::GeneralizedPareto => 130.0,
    };
    let between = libm::log(0.5 * FIRST_RATIO / delta) / libm::log(reach);
    // A stage for the last tenth of the way would not be worth its pass.
    3 + (libm::ceil(between - 0.1) as u32).min(16)
}

#[cfg(test)]
mod tests;
