//! Everything that changes from one encode of a tensor to the next.

use std::ops::Range;

use half::bf16;

use super::Codec;
use crate::memory::{Buffers, Keeps, Kept, Keys, Optimizer, add_finite};
use crate::rng::Key;
use crate::scan::{Field, Tensor};
use crate::simd::peak::NON_FINITE;
use crate::simd::{Kernels, in_standard_mode, reduce, summary};
use crate::sparsify::{Sparsifier, Tracker};
use crate::{Error, Input, Result};

/// The state of one tensor under one codec: residual, momentum, tracked bound, stage controller.
///
/// Use it with codecs of the same memory kind; another ratio, sparsifier or quantizer is taken from
/// the next encode on, as schedules need it.
#[derive(Debug, Clone)]
pub struct State {
    numel: usize,
    step: u64,
    /// Which tensor this is, and whose: what random numbers depend on.
    tensor: u64,
    stream: u64,
    pub(super) kept: Kept,
    pub(super) tracked: Tracked,
    /// What was tracked before the last encode, for as long as that can be rolled back.
    previous: Option<Previous>,
}

/// What is tracked of a tensor, and for which sparsifier.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    sparsifier: Sparsifier,
    pub(super) tracker: Tracker,
}

/// What was tracked before an encode.
#[derive(Debug, Clone)]
struct Previous {
    tracked: Tracked,
    /// See [`Optimizer`].
    steps: u64,
}

impl Tracked {
    fn new(sparsifier: Sparsifier, numel: usize) -> Self {
        Self { sparsifier, tracker: in_standard_mode(|| sparsifier.tracker(numel)) }
    }
}

impl State {
    pub(super) fn new(codec: &Codec, numel: usize) -> Result<Self> {
        let kept = Kept::new(codec.memory(), numel)?;
        let tracked = Tracked::new(codec.sparsifier(), numel);
        Ok(Self { numel, step: 0, tensor: 0, stream: 0, kept, tracked, previous: None })
    }

    /// The same state, of the tensor with this id ([`crate::rng::tensor_id`]) and this stream: states
    /// that must not draw the same random numbers, such as those of two ranks, differ in it.
    #[must_use]
    pub fn identified(self, tensor: u64, stream: u64) -> Self {
        Self { tensor, stream, ..self }
    }

    /// The key of this step's random selection: the same in every stream.
    pub(crate) fn selection_key(&self, seed: u64) -> Key {
        Key::new(seed, self.tensor, self.step, 0)
    }

    /// The key of this step's stochastic rounding: different in every stream.
    pub(crate) fn rounding_key(&self, seed: u64) -> Key {
        // A stream of zero must not draw what selection does.
        Key::new(seed, self.tensor, self.step, !self.stream)
    }

    /// The keys of this step's rounding of what is kept: different in every stream.
    fn memory_keys(&self, seed: u64) -> Keys {
        // No rank has a stream so high that these would be the numbers of another's rounding.
        let key = |bit: u32| Key::new(seed, self.tensor, self.step, !self.stream ^ (1 << bit));
        Keys { residual: key(63), moment: key(61) }
    }

    /// The key of the rounding of what [`crate::bucket::merge`] sends: no encode draws the same.
    pub(crate) fn merging_key(&self, seed: u64) -> Key {
        Key::new(seed, self.tensor, self.step, !self.stream ^ 1 << 62)
    }

    /// Adds to the residual of the positions from `start` on what other ranks have sent and is not
    /// sent on: after an encode, with which it is undone.
    ///
    /// Values are finite. What is zero is not looked at; nothing changes on an error.
    pub(crate) fn absorb(&mut self, codec: &Codec, start: usize, left: &[f32]) -> Result<()> {
        self.check_undoable()?;
        let seed = codec.memory().facts().storage.seed().unwrap_or_default();
        let key = Key::new(seed, self.tensor, self.step, !self.stream ^ 3 << 62);
        self.kept.add(start, left, key)
    }

    /// Checks that the last encode can be undone, and with it what is done to the residual now.
    fn check_undoable(&self) -> Result<()> {
        if !self.can_roll_back() {
            return Err(Error::argument(
                "a residual takes what is left of sums after an encode that can be undone",
            ));
        }
        Ok(())
    }

    /// Takes the residual of a range out, for [`State::lower`] after the next encode, which finds
    /// nothing there and selects its entries elsewhere. Empty without a residual in float32.
    pub fn lift(&mut self, range: Range<usize>) -> Result<Vec<f32>> {
        let Range { start, end } = range;
        if start > end || end > self.numel {
            let numel = self.numel;
            return Err(Error::argument(format!(
                "entries {start} to {end} of a residual of {numel}"
            )));
        }
        Ok(self.kept.lift(start..end))
    }

    /// Puts a lifted residual back: into what an encode has left there, if there was one since
    /// `step`, and into what its undoing brings back.
    pub fn lower(&mut self, start: usize, lifted: &[f32], step: u64) -> Result<()> {
        if start.checked_add(lifted.len()).is_none_or(|end| end > self.numel) {
            return Err(Error::argument("more was lifted than there is"));
        }
        self.kept.lower(start, lifted, self.step != step)
    }

    /// Adds what the residual has from `start` on to sums, and takes it out: after an encode, with
    /// which that is undone. Nothing without a residual in float32.
    pub(crate) fn join(&mut self, start: usize, sums: &mut [f32]) -> Result<()> {
        self.check_undoable()?;
        let own = self.kept.lift(start..start + sums.len());
        add_finite(sums, &own, |sum, _| sum)
    }

    /// Checks that this state and a tensor of `numel` elements go with the codec.
    pub(super) fn check(&self, codec: &Codec, numel: usize) -> Result<()> {
        codec.sparsifier().check_numel(numel)?;
        if numel != self.numel {
            let expected = self.numel;
            return Err(Error::argument(format!(
                "the tensor has {numel} elements, but the state was created for {expected}"
            )));
        }
        self.kept.check(codec.memory())
    }

    /// Begins an encode: checks that this state and a tensor of `numel` elements go with the codec.
    /// The encode before it can no longer be undone.
    pub(super) fn prepare(&mut self, codec: &Codec, numel: usize) -> Result<()> {
        self.check(codec, numel)?;
        if let Some(seed) = codec.memory().facts().storage.seed() {
            self.kept.keys = self.memory_keys(seed);
        }
        self.forbid_undo();
        Ok(())
    }

    /// Has the last encode be one that is not undone.
    fn forbid_undo(&mut self) {
        self.previous = None;
        if let Some(shared) = &mut self.kept.shared {
            shared.begin();
        }
    }

    /// The tracker that an encode with this codec begins from: that of the last encode, or a new one
    /// for another sparsifier. The state keeps its own until [`State::commit`].
    pub(super) fn tracker(&self, codec: &Codec) -> Tracker {
        if codec.sparsifier() == self.tracked.sparsifier {
            self.tracked.tracker.clone()
        } else {
            codec.sparsifier().tracker(self.numel)
        }
    }

    /// Takes over what an encode with this codec has written and tracked; from now on it can be
    /// rolled back.
    pub(super) fn commit(&mut self, codec: &Codec, tracker: Tracker) {
        self.take_over(codec, tracker);
        self.kept.optimizer.steps += 1;
    }

    /// The same of an encode that no gradient has gone into.
    pub(super) fn take_over(&mut self, codec: &Codec, tracker: Tracker) {
        self.kept.commit();
        let tracked = Tracked { sparsifier: codec.sparsifier(), tracker };
        let tracked = std::mem::replace(&mut self.tracked, tracked);
        self.previous = Some(Previous { tracked, steps: self.kept.optimizer.steps });
        self.step += 1;
    }

    /// Elements of the tensor.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Successful encodes so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Bytes that are held for what is kept of each entry: those of both buffers of a pair.
    pub fn nbytes(&self) -> usize {
        self.kept.nbytes()
    }

    /// What was not sent yet, if the codec remembers it in float32.
    pub fn residual(&self) -> Option<&[f32]> {
        self.kept.residual.as_ref().map(Buffers::as_slice)
    }

    /// What was not sent yet, if the codec remembers it, as it is kept: in float32 or bfloat16.
    pub fn stored_residual(&self) -> Option<Input<'_>> {
        self.kept.stored()
    }

    /// The Euclidean norm of the residual, if there is one: a read of it, with sums in float64.
    pub fn residual_norm(&self) -> Option<f64> {
        let norm = |residual| {
            let (kernels, mut lanes) = (Kernels::current(), summary::Lanes::default());
            Tensor::from(Field(residual))
                .for_each_block(kernels, |_, block| kernels.squares(block, &mut lanes));
            reduce(&lanes.squares).sqrt()
        };
        self.stored_residual().map(|residual| in_standard_mode(|| norm(residual)))
    }

    /// Replaces the residual by these finite values; where it is kept in bfloat16, by the nearest
    /// to each.
    pub fn set_residual(&mut self, values: &[f32]) -> Result<()> {
        self.set_stored_residual(Input::F32(values))
    }

    /// The same of values in float32 or bfloat16.
    pub fn set_stored_residual(&mut self, values: Input<'_>) -> Result<()> {
        let Kept { residual, rounded, .. } = &mut self.kept;
        if !set_stored("residual", (residual, rounded), values)? {
            return Err(Error::argument("the codec of this state has no residual to set"));
        }
        self.forbid_undo();
        Ok(())
    }

    /// The momentum, if the codec keeps one.
    pub fn momentum(&self) -> Option<&[f32]> {
        self.kept.moment.as_ref().filter(|_| !self.has(Keeps::SecondMoment)).map(Buffers::as_slice)
    }

    /// Replaces the momentum by these finite values.
    pub fn set_momentum(&mut self, values: &[f32]) -> Result<()> {
        let keeps = if self.has(Keeps::Estimate) { Keeps::Estimate } else { Keeps::Momentum };
        self.set_moment(keeps, "momentum", Input::F32(values))
    }

    /// The mean of the estimates of all ranks, if the codec sends changes of them.
    pub fn estimate(&self) -> Option<&[f32]> {
        self.kept.shared.as_ref().map(Buffers::as_slice)
    }

    /// Replaces it by these finite values.
    pub fn set_estimate(&mut self, values: &[f32]) -> Result<()> {
        let Some(shared) = &mut self.kept.shared else {
            return Err(Error::argument("the codec of this state has no estimate to set"));
        };
        shared.set("estimate", values)?;
        self.forbid_undo();
        Ok(())
    }

    /// Adds the mean of what all ranks have sent to the mean of their estimates, which takes its place:
    /// both times `scale`. Call it once after an encode, with which it is undone.
    ///
    /// On an error, that a sum is not finite, or of a codec without an estimate, nothing has changed.
    pub fn deliver(&mut self, mean: &mut [f32], scale: f32) -> Result<()> {
        let Some(shared) = self.kept.shared.as_mut().filter(|_| mean.len() == self.numel) else {
            return Err(Error::argument("the codec of this state has no estimate of this length"));
        };
        let ((old, next), kernels) = (shared.begin(), Kernels::current());
        in_standard_mode(|| kernels.add(next, old, mean, 1.0 / scale));
        if kernels.peak(next) >= NON_FINITE {
            let bad = || next.iter().enumerate().filter(|(_, value)| !value.is_finite());
            let first = bad().next().map_or(0, |(at, _)| at as u64);
            return Err(Error::NonFinite { count: bad().count() as u64, first });
        }
        mean.iter_mut().zip(&*next).for_each(|(mean, next)| *mean = scale * next);
        shared.commit();
        Ok(())
    }

    /// The second moment of the gradients, if the codec makes Adam's steps of them and keeps it in
    /// float32.
    pub fn second_moment(&self) -> Option<&[f32]> {
        self.kept.moment.as_ref().filter(|_| self.has(Keeps::SecondMoment)).map(Buffers::as_slice)
    }

    /// The same as it is kept: in float32 or bfloat16.
    pub fn stored_second_moment(&self) -> Option<Input<'_>> {
        self.kept.stored_moment(Keeps::SecondMoment)
    }

    /// Replaces the second moment by these finite values, none of them below zero; where it is kept in
    /// bfloat16, by the nearest to each.
    pub fn set_second_moment(&mut self, values: &[f32]) -> Result<()> {
        self.set_stored_second_moment(Input::F32(values))
    }

    /// The same of values in float32 or bfloat16.
    pub fn set_stored_second_moment(&mut self, values: Input<'_>) -> Result<()> {
        let field = Field(values);
        if let Some(at) = (0..field.len()).find(|&at| field.at(at) < 0.0) {
            let value = field.at(at);
            return Err(Error::argument(format!(
                "a second moment must not be negative, got {value} at position {at}"
            )));
        }
        self.set_moment(Keeps::SecondMoment, "second moment", values)
    }

    fn has(&self, keeps: Keeps) -> bool {
        self.kept.keeps() == keeps
    }

    fn set_moment(&mut self, keeps: Keeps, name: &str, values: Input<'_>) -> Result<()> {
        let has = self.has(keeps);
        let Kept { moment, rounded_moment, .. } = &mut self.kept;
        if !has || !set_stored(name, (moment, rounded_moment), values)? {
            return Err(Error::argument(format!("the codec of this state has no {name} to set")));
        }
        self.forbid_undo();
        Ok(())
    }

    /// The learning rate of the next encode, if the codec makes steps of gradients; 1 at first.
    pub fn learning_rate(&self) -> Option<f64> {
        (self.kept.keeps() == Keeps::SecondMoment).then_some(self.kept.optimizer.rate)
    }

    /// Replaces the learning rate. Rolling back an encode does not bring the one before it back.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        if self.learning_rate().is_none() {
            return Err(Error::argument(
                "the codec of this state sends gradients and has no learning rate: the optimizer \
                 applies it",
            ));
        }
        self.kept.optimizer.rate = check_rate(rate)?;
        Ok(())
    }

    /// Whether [`State::rollback`] would succeed.
    pub fn can_roll_back(&self) -> bool {
        self.previous.is_some() && self.kept.can_roll_back()
    }

    /// Undoes the last encode exactly. Possible once after each successful encode, until the next
    /// one begins.
    pub fn rollback(&mut self) -> Result<()> {
        if !self.can_roll_back() {
            return Err(Error::argument(
                "there is no encode to roll back: none has succeeded since the last rollback, \
                 load, reset or failed encode",
            ));
        }
        if let Some(Previous { tracked, steps }) = self.previous.take() {
            self.tracked = tracked;
            self.kept.optimizer.steps = steps;
        }
        self.kept.rollback();
        self.step -= 1;
        Ok(())
    }

    /// Forgets everything: the state is as new.
    pub fn reset(&mut self) {
        self.kept.clear();
        self.tracked = Tracked::new(self.tracked.sparsifier, self.numel);
        self.forbid_undo();
        self.step = 0;
        self.kept.optimizer = Optimizer::default();
    }

    /// All of the state but residual and moments, by name, for a checkpoint.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        in_standard_mode(|| self.tracked_scalars())
    }

    fn tracked_scalars(&self) -> Vec<(String, f64)> {
        let mut scalars = vec![("step".to_owned(), self.step as f64)];
        if let Some(rate) = self.learning_rate() {
            scalars.push((RATE.to_owned(), rate));
            scalars.push((STEPS.to_owned(), self.kept.optimizer.steps as f64));
        }
        scalars.extend(self.tracked.tracker.scalars());
        scalars
    }

    /// Restores what [`State::scalars`] gave. Checks all of it before it changes anything.
    pub fn load_scalars(&mut self, scalars: &[(String, f64)]) -> Result<()> {
        in_standard_mode(|| self.load(scalars))
    }

    fn load(&mut self, scalars: &[(String, f64)]) -> Result<()> {
        let step = whole(scalars, "step")?;
        let optimizer = match self.learning_rate() {
            None => self.kept.optimizer,
            Some(_) => {
                Optimizer { rate: check_rate(of(scalars, RATE)?)?, steps: whole(scalars, STEPS)? }
            }
        };
        self.tracked.tracker.load(scalars)?;
        self.step = step;
        self.kept.optimizer = optimizer;
        self.forbid_undo();
        Ok(())
    }
}

/// Replaces values by others, in whichever of the two they are kept; whether they are in any.
fn set_stored(
    name: &str,
    kept: (&mut Option<Buffers>, &mut Option<Buffers<bf16>>),
    values: Input<'_>,
) -> Result<bool> {
    match (kept, values) {
        ((Some(kept), _), Input::F32(values)) => kept.set(name, values)?,
        ((Some(kept), _), Input::BF16(values)) => kept.set(name, values)?,
        ((_, Some(kept)), Input::F32(values)) => kept.set(name, values)?,
        ((_, Some(kept)), Input::BF16(values)) => kept.set(name, values)?,
        ((None, None), _) => return Ok(false),
        (_, Input::F16(_) | Input::F64(_)) => {
            return Err(Error::argument(format!("a {name} must be float32 or bfloat16")));
        }
    }
    Ok(true)
}

/// Names of scalars.
const RATE: &str = "learning_rate";
const STEPS: &str = "second_moment_steps";

/// The scalar of a name.
fn of(scalars: &[(String, f64)], name: &str) -> Result<f64> {
    let found = scalars.iter().find(|(each, _)| each == name);
    found
        .map(|&(_, value)| value)
        .ok_or_else(|| Error::argument(format!("the state has no '{name}'")))
}

/// The same of a count.
fn whole(scalars: &[(String, f64)], name: &str) -> Result<u64> {
    let value = of(scalars, name)?;
    if !((0.0..9e15).contains(&value) && libm::trunc(value) == value) {
        return Err(Error::argument(format!("'{name}' must be a whole number, got {value}")));
    }
    Ok(value as u64)
}

/// A learning rate that may be.
fn check_rate(rate: f64) -> Result<f64> {
    if rate >= 0.0 && (rate as f32).is_finite() {
        return Ok(rate);
    }
    Err(Error::argument(format!("learning_rate must be finite as float32 and >= 0, got {rate}")))
}
