//! What a memory keeps of one tensor.

use std::ops::Range;

use half::bf16;

use super::buffers::add_finite;
use super::storage::Stored;
use super::{Buffers, Memory};
use crate::rng::Key;
use crate::simd::dither;
use crate::{Error, Input, Result};

/// What there is to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    /// What was not sent.
    Residual,
    /// The same in bfloat16.
    Rounded,
    /// What was not sent, and a momentum beside it.
    Momentum,
    /// What was not sent of the steps of an optimizer, and a second moment of gradients beside it.
    SecondMoment,
}

impl Keeps {
    /// What that is, for errors.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Residual => "a residual",
            Self::Rounded => "a residual in bfloat16",
            Self::Momentum => "a residual and a momentum",
            Self::SecondMoment => "a residual and a second moment",
        }
    }

    /// Whether a moment is kept beside the residual.
    fn has_moment(self) -> bool {
        match self {
            Self::Nothing | Self::Residual | Self::Rounded => false,
            Self::Momentum | Self::SecondMoment => true,
        }
    }
}

/// What is kept of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    keeps: Keeps,
    /// What was not sent, which for momentum correction is the velocity.
    pub residual: Option<Buffers>,
    /// The same where it is kept in bfloat16, for which the other is none.
    pub rounded: Option<Buffers<bf16>>,
    /// The moment beside it.
    pub moment: Option<Buffers>,
    /// What makes steps of gradients, where a memory does.
    pub optimizer: Optimizer,
    /// What the last encode, or the one under way, rounds with.
    pub key: Key,
}

/// What steps of an optimizer depend on besides gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Optimizer {
    /// The learning rate of the next step.
    pub rate: f64,
    /// Steps so far, each with a gradient that the moment has taken in.
    pub steps: u64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { rate: 1.0, steps: 0 }
    }
}

impl Kept {
    /// What this memory keeps of a new tensor.
    pub fn new(memory: Memory, numel: usize) -> Result<Self> {
        fn make<T: Stored>(
            memory: Memory,
            numel: usize,
            wanted: bool,
        ) -> Result<Option<Buffers<T>>> {
            wanted.then(|| Buffers::zeros(numel, memory.is_in_place())).transpose()
        }
        let keeps = memory.facts().keeps;
        let (nothing, rounded) = (keeps == Keeps::Nothing, keeps == Keeps::Rounded);
        Ok(Self {
            keeps,
            residual: make(memory, numel, !nothing && !rounded)?,
            rounded: make(memory, numel, rounded)?,
            moment: make(memory, numel, keeps.has_moment())?,
            optimizer: Optimizer::default(),
            key: Key::from_bits(0),
        })
    }

    /// The same values once more, in one buffer each.
    pub fn copy(&self) -> Result<Self> {
        let copy = |buffers: &Option<Buffers>| buffers.as_ref().map(Buffers::copy).transpose();
        let rounded = self.rounded.as_ref().map(Buffers::copy).transpose()?;
        Ok(Self { residual: copy(&self.residual)?, rounded, moment: copy(&self.moment)?, ..*self })
    }

    /// What there is.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// What was not sent, in whatever it is kept.
    pub fn stored(&self) -> Option<Input<'_>> {
        match (&self.residual, &self.rounded) {
            (Some(residual), _) => Some(Input::F32(residual.as_slice())),
            (None, Some(rounded)) => Some(Input::BF16(rounded.as_slice())),
            (None, None) => None,
        }
    }

    /// The float32 buffers there are.
    fn buffers(&mut self) -> impl Iterator<Item = &mut Buffers> {
        self.residual.iter_mut().chain(&mut self.moment)
    }

    /// As [`Buffers::make_apart`], of all.
    pub fn make_apart(&mut self) -> Result<()> {
        self.buffers().try_for_each(Buffers::make_apart)?;
        self.rounded.iter_mut().try_for_each(Buffers::make_apart)
    }

    /// As [`Buffers::commit`], of all.
    pub fn commit(&mut self) {
        self.buffers().for_each(Buffers::commit);
        self.rounded.iter_mut().for_each(Buffers::commit);
    }

    /// As [`Buffers::rollback`], of all.
    pub fn rollback(&mut self) {
        self.buffers().for_each(Buffers::rollback);
        self.rounded.iter_mut().for_each(Buffers::rollback);
    }

    /// As [`Buffers::clear`], of all.
    pub fn clear(&mut self) {
        self.buffers().for_each(Buffers::clear);
        self.rounded.iter_mut().for_each(Buffers::clear);
    }

    /// Amends what the last commit has made of these positions, of which so much was not sent.
    pub fn amend(&mut self, memory: Memory, left: impl Iterator<Item = (usize, f32)>) {
        let key = self.key;
        if let Some(residual) = &mut self.residual {
            let (before, after) = residual.amend();
            for (i, left) in left {
                after[i] = memory.left(before.map_or(0.0, |before| before[i]), left);
            }
        } else if let Some(rounded) = &mut self.rounded {
            let (before, after) = rounded.amend();
            for (i, left) in left {
                let left = memory.left(before.map_or(0.0, |before| before[i].to_f32()), left);
                after[i] = dither::at(left, key, i as u32);
            }
        }
    }

    /// Adds to the residual of the positions from `start` on, after a commit that can be undone. A
    /// residual in bfloat16 rounds each sum with numbers of this key.
    pub fn add(&mut self, start: usize, more: &[f32], key: Key) -> Result<()> {
        let part = start..start + more.len();
        if let Some(residual) = &mut self.residual {
            return add_finite(&mut residual.current_mut()[part], more, |sum, _| sum);
        }
        let Some(rounded) = &mut self.rounded else {
            return Err(Error::argument("the codec of this state has no residual to add to"));
        };
        let store = |sum, i| dither::at(sum, key, (start + i) as u32);
        add_finite(&mut rounded.current_mut()[part], more, store)
    }

    /// Takes a float32 residual of these positions out; empty if there is none.
    pub fn lift(&mut self, part: Range<usize>) -> Vec<f32> {
        let Some(residual) = &mut self.residual else { return Vec::new() };
        let residual = &mut residual.current_mut()[part];
        let lifted = residual.to_vec();
        residual.fill(0.0);
        lifted
    }

    /// As [`Buffers::put_back`], of the residual.
    pub fn lower(&mut self, start: usize, lifted: &[f32], committed: bool) -> Result<()> {
        match &mut self.residual {
            Some(residual) => residual.put_back(start, lifted, committed),
            None => Ok(()),
        }
    }

    /// Replaces what a residual in bfloat16 becomes of entries of which something was not sent.
    /// `left` has their positions, and what that is; what is kept of it, `memory` says.
    pub fn put_rounded(&mut self, memory: Memory, left: impl Iterator<Item = (usize, f32)>) {
        let (Some(rounded), key) = (&mut self.rounded, self.key) else { return };
        if memory.facts().becomes_sums {
            let next = rounded.next_mut();
            return left.for_each(|(i, left)| next[i] = dither::at(left, key, i as u32));
        }
        let (kept, next) = rounded.begin_apart();
        for (i, left) in left {
            next[i] = dither::at(memory.left(kept[i].to_f32(), left), key, i as u32);
        }
    }

    /// The same where nothing is left.
    pub fn forget_rounded(&mut self, positions: &[u32]) {
        let next = self.rounded.as_mut().map(Buffers::next_mut).unwrap_or_default();
        for &at in positions {
            next[at as usize] = bf16::ZERO;
        }
    }

    /// The bytes of all buffers there are.
    pub fn nbytes(&self) -> usize {
        let rounded = self.rounded.as_ref().map_or(0, Buffers::nbytes);
        rounded + self.residual.iter().chain(&self.moment).map(Buffers::nbytes).sum::<usize>()
    }

    /// Makes zeros of a residual that is not finite, and of the moment beside it: something that is
    /// not has gone into that, too.
    pub fn drop_non_finite(&mut self) {
        let rounded = self.rounded.as_mut().map(Buffers::current_mut).unwrap_or_default();
        rounded.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = bf16::ZERO);
        let Some(residual) = &mut self.residual else { return };
        let moment = self.moment.as_mut().map(Buffers::current_mut).unwrap_or_default();
        let residual = residual.current_mut();
        for (i, value) in residual.iter_mut().enumerate().filter(|(_, value)| !value.is_finite()) {
            *value = 0.0;
            if let Some(moment) = moment.get_mut(i) {
                *moment = 0.0;
            }
        }
    }

    /// Whether an encode overwrites the residual that it reads.
    pub fn is_in_place(&self) -> bool {
        let rounded = self.rounded.as_ref().is_some_and(Buffers::is_in_place);
        rounded || self.residual.as_ref().is_some_and(Buffers::is_in_place)
    }

    /// Whether the last encode can be undone, if there was one.
    pub fn can_roll_back(&self) -> bool {
        let rounded = self.rounded.as_ref().is_none_or(Buffers::can_roll_back);
        rounded && self.residual.as_ref().is_none_or(Buffers::can_roll_back)
    }
}
