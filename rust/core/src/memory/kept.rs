//! What a memory keeps of one tensor.

use std::ops::Range;

use half::bf16;

use super::buffers::add_finite;
use super::storage::Stored;
use super::{Buffers, Facts, Memory};
use crate::rng::Key;
use crate::simd::dither;
use crate::{Error, Input, Result};

/// What there is to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Keeps {
    #[default]
    Nothing,
    /// What was not sent.
    Residual,
    /// What was not sent, and a momentum beside it.
    Momentum,
    /// What was not sent of the steps of an optimizer, and a second moment of gradients beside it.
    SecondMoment,
    /// What all ranks know of the momentum beside it, and the mean of that over the ranks.
    Estimate,
}

impl Keeps {
    /// What that is, for errors.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Residual => "a residual",
            Self::Momentum => "a residual and a momentum",
            Self::SecondMoment => "a residual and a second moment",
            Self::Estimate => "an estimate and a momentum",
        }
    }

    /// Whether a moment is kept beside the residual.
    fn has_moment(self) -> bool {
        match self {
            Self::Nothing | Self::Residual => false,
            Self::Momentum | Self::SecondMoment | Self::Estimate => true,
        }
    }
}

/// What is kept of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    keeps: Keeps,
    /// Whether in bfloat16.
    rounds: bool,
    /// What was not sent, which for momentum correction is the velocity; or this rank's estimate.
    pub residual: Option<Buffers>,
    /// The same where it is kept in bfloat16, for which the other is none.
    pub rounded: Option<Buffers<bf16>>,
    /// The moment beside it.
    pub moment: Option<Buffers>,
    /// The same where it is kept in bfloat16.
    pub rounded_moment: Option<Buffers<bf16>>,
    /// The mean of the estimates of all ranks.
    pub shared: Option<Buffers>,
    /// What makes steps of gradients, where a memory does.
    pub optimizer: Optimizer,
    /// What the last encode, or the one under way, rounds with.
    pub keys: Keys,
}

/// What a memory in bfloat16 is rounded with: no two values with the same numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys {
    pub residual: Key,
    pub moment: Key,
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
        fn make<T: Stored>(numel: usize, wanted: bool) -> Result<Option<Buffers<T>>> {
            wanted.then(|| Buffers::zeros(numel)).transpose()
        }
        let Facts { keeps, storage, .. } = memory.facts();
        let (remembers, rounds) = (keeps != Keeps::Nothing, storage.rounds());
        let has_moment = keeps.has_moment();
        let unset = Key::from_bits(0);
        Ok(Self {
            keeps,
            rounds,
            residual: make(numel, remembers && !rounds)?,
            rounded: make(numel, remembers && rounds)?,
            moment: make(numel, has_moment && !rounds)?,
            rounded_moment: make(numel, has_moment && rounds)?,
            shared: make(numel, keeps == Keeps::Estimate)?,
            optimizer: Optimizer::default(),
            keys: Keys { residual: unset, moment: unset },
        })
    }

    /// What there is.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// An error if this memory keeps something else, or in another type.
    pub fn check(&self, memory: Memory) -> Result<()> {
        let Facts { keeps, storage, .. } = memory.facts();
        let (needs, has) = ((keeps, storage.rounds()), (self.keeps, self.rounds));
        if needs == has {
            return Ok(());
        }
        let words = |(keeps, rounds): (Keeps, bool)| {
            format!("{}{}", keeps.in_words(), if rounds { " in bfloat16" } else { "" })
        };
        let (needs, has) = (words(needs), words(has));
        Err(Error::argument(format!(
            "the state keeps {has}, but the codec needs {needs}; create the state with init_state \
             of this codec"
        )))
    }

    /// What was not sent, in whatever it is kept.
    pub fn stored(&self) -> Option<Input<'_>> {
        match (&self.residual, &self.rounded) {
            (Some(residual), _) => Some(Input::F32(residual.as_slice())),
            (None, Some(rounded)) => Some(Input::BF16(rounded.as_slice())),
            (None, None) => None,
        }
    }

    /// The moment, if that is what there is, in whatever it is kept.
    pub fn stored_moment(&self, keeps: Keeps) -> Option<Input<'_>> {
        match (&self.moment, &self.rounded_moment) {
            _ if self.keeps != keeps => None,
            (Some(moment), _) => Some(Input::F32(moment.as_slice())),
            (None, Some(rounded)) => Some(Input::BF16(rounded.as_slice())),
            (None, None) => None,
        }
    }

    /// The float32 buffers there are.
    fn buffers(&mut self) -> impl Iterator<Item = &mut Buffers> {
        self.residual.iter_mut().chain(&mut self.moment)
    }

    /// The bfloat16 buffers there are.
    fn rounded_buffers(&mut self) -> impl Iterator<Item = &mut Buffers<bf16>> {
        self.rounded.iter_mut().chain(&mut self.rounded_moment)
    }

    /// As [`Buffers::commit`], of all.
    pub fn commit(&mut self) {
        self.buffers().for_each(Buffers::commit);
        self.rounded_buffers().for_each(Buffers::commit);
    }

    /// As [`Buffers::rollback`], of all; of the shared estimate if it has changed since the encode.
    pub fn rollback(&mut self) {
        self.shared.iter_mut().filter(|shared| shared.can_roll_back()).for_each(Buffers::rollback);
        self.buffers().for_each(Buffers::rollback);
        self.rounded_buffers().for_each(Buffers::rollback);
    }

    /// As [`Buffers::clear`], of all.
    pub fn clear(&mut self) {
        self.buffers().for_each(Buffers::clear);
        self.shared.iter_mut().for_each(Buffers::clear);
        self.rounded_buffers().for_each(Buffers::clear);
    }

    /// Amends what the last commit has made of entries: positions, values, and what was sent of these.
    pub fn amend(&mut self, memory: Memory, entries: impl Iterator<Item = (usize, f32, f32)>) {
        let key = self.keys.residual;
        if let Some(residual) = &mut self.residual {
            let (before, after) = residual.amend();
            for (i, value, sent) in entries {
                after[i] = memory.left(before.map_or(0.0, |before| before[i]), value, sent);
            }
        } else if let Some(rounded) = &mut self.rounded {
            let (before, after) = rounded.amend();
            for (i, value, sent) in entries {
                let before = before.map_or(0.0, |before| before[i].to_f32());
                let left = memory.left(before, value, sent);
                after[i] = dither::at(left, key, i as u32);
            }
        }
    }

    /// Adds what is left of sums to the residual of the positions from `start` on, after a commit that can
    /// be undone. A residual in bfloat16 rounds each sum with numbers of this key. An estimate, which has
    /// been added to the sums whole, is less by as much.
    pub fn add(&mut self, start: usize, more: &[f32], key: Key) -> Result<()> {
        let part = start..start + more.len();
        if let Some(residual) = &mut self.residual {
            if self.keeps == Keeps::Estimate {
                let less: Vec<_> = more.iter().map(|more| -more).collect();
                return add_finite(&mut residual.current_mut()[part], &less, |sum, _| sum);
            }
            return add_finite(&mut residual.current_mut()[part], more, |sum, _| sum);
        }
        let Some(rounded) = &mut self.rounded else {
            return Err(Error::argument("the codec of this state has no residual to add to"));
        };
        let store = |sum, i| dither::at(sum, key, (start + i) as u32);
        add_finite(&mut rounded.current_mut()[part], more, store)
    }

    /// Takes a float32 residual of these positions out; empty if there is none. An estimate stays.
    pub fn lift(&mut self, part: Range<usize>) -> Vec<f32> {
        let stays = self.keeps == Keeps::Estimate;
        let Some(residual) = self.residual.as_mut().filter(|_| !stays) else { return Vec::new() };
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

    /// Replaces what a residual in bfloat16 becomes of entries: their positions, values, and what was
    /// sent of these. What is kept, `memory` says.
    pub fn put_rounded(
        &mut self,
        memory: Memory,
        entries: impl Iterator<Item = (usize, f32, f32)>,
    ) {
        let (Some(rounded), key) = (&mut self.rounded, self.keys.residual) else { return };
        let (kept, next) = rounded.begin();
        for (i, value, sent) in entries {
            next[i] = dither::at(memory.left(kept[i].to_f32(), value, sent), key, i as u32);
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
        let plain = self.residual.iter().chain(&self.moment).chain(&self.shared);
        let plain = plain.map(Buffers::nbytes);
        let rounded = self.rounded.iter().chain(&self.rounded_moment).map(Buffers::nbytes);
        plain.chain(rounded).sum()
    }

    /// Whether the last encode can be undone, if there was one.
    pub fn can_roll_back(&self) -> bool {
        let rounded = self.rounded.as_ref().is_none_or(Buffers::can_roll_back);
        rounded && self.residual.as_ref().is_none_or(Buffers::can_roll_back)
    }
}
