//! The buffers of a memory: a pair, or a single one.

use super::storage::Stored;
use crate::buffer::Buffer;
use crate::simd::normal_or_zero;
use crate::{Error, Result};

/// Two buffers that swap on success, or one that is written in place.
///
/// With two, an encode reads one and writes the other; only when the frame is done do they change
/// roles. So a failed encode leaves the values as they were, a successful one can be undone exactly,
/// and no pass over memory is spent on either.
///
/// With one, an encode has to know that it will not fail before it writes at all, and what it
/// overwrites is gone.
#[derive(Debug, Clone)]
pub(crate) struct Buffers<T: Stored = f32> {
    current: Buffer<T>,
    /// None if the next values are written over the current ones.
    other: Option<Buffer<T>>,
    /// Whether `other` holds the values before the last encode.
    undoable: bool,
}

impl<T: Stored> Buffers<T> {
    /// `len` zeros.
    pub fn zeros(len: usize, in_place: bool) -> Result<Self> {
        let other = if in_place { None } else { Some(Buffer::zeros(len)?) };
        Ok(Self { current: Buffer::zeros(len)?, other, undoable: false })
    }

    /// A copy of the values, in one buffer.
    pub(crate) fn copy(&self) -> Result<Self> {
        let mut current = Buffer::zeros(self.current.as_slice().len())?;
        current.as_mut_slice().copy_from_slice(self.current.as_slice());
        Ok(Self { current, other: None, undoable: false })
    }

    /// The values before the last commit, if they are there yet, and those that it has made, to be
    /// amended. The commit can still be undone.
    pub(crate) fn amend(&mut self) -> (Option<&[T]>, &mut [T]) {
        let before = if self.undoable { self.other.as_ref() } else { None };
        (before.map(Buffer::as_slice), self.current.as_mut_slice())
    }

    /// Zeros again, in the memory that there is: nothing can go wrong.
    pub fn clear(&mut self) {
        self.current.as_mut_slice().fill(T::zeroed());
        self.undoable = false;
    }

    /// Makes a buffer to write apart, for a memory that is never written in place.
    pub(crate) fn make_apart(&mut self) -> Result<()> {
        if self.other.is_none() {
            self.other = Some(Buffer::zeros(self.current.as_slice().len())?);
        }
        Ok(())
    }

    /// The bytes of all buffers there are.
    pub fn nbytes(&self) -> usize {
        let buffers = if self.is_in_place() { 1 } else { 2 };
        buffers * size_of_val(self.as_slice())
    }

    /// Whether there is one buffer only.
    pub fn is_in_place(&self) -> bool {
        self.other.is_none()
    }

    /// The values.
    pub fn as_slice(&self) -> &[T] {
        self.current.as_slice()
    }

    /// The values, and the buffer that the next ones are written to; none and the values themselves
    /// if that is done in place. Ends the chance to undo.
    pub(crate) fn begin(&mut self) -> (Option<&[T]>, &mut [T]) {
        self.undoable = false;
        match &mut self.other {
            Some(other) => (Some(self.current.as_slice()), other.as_mut_slice()),
            None => (None, self.current.as_mut_slice()),
        }
    }

    /// As [`Buffers::begin`], after [`Buffers::make_apart`].
    pub(crate) fn begin_apart(&mut self) -> (&[T], &mut [T]) {
        self.undoable = false;
        let next = self.other.as_mut().map(Buffer::as_mut_slice).unwrap_or_default();
        (self.current.as_slice(), next)
    }

    /// The buffer that [`Buffers::begin`] gave out to be written.
    pub(crate) fn next(&self) -> &[T] {
        self.other.as_ref().unwrap_or(&self.current).as_slice()
    }

    /// As [`Buffers::next`], to patch it.
    pub(crate) fn next_mut(&mut self) -> &mut [T] {
        self.other.as_mut().unwrap_or(&mut self.current).as_mut_slice()
    }

    /// Makes the written buffer the values.
    pub(crate) fn commit(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.current, other);
            self.undoable = true;
        }
    }

    /// Whether [`Buffers::rollback`] would succeed.
    pub(crate) fn can_roll_back(&self) -> bool {
        self.undoable
    }

    /// Goes back to the values before the last commit.
    pub(crate) fn rollback(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.current, other);
        }
        self.undoable = false;
    }

    /// Writes to the values themselves.
    pub(crate) fn current_mut(&mut self) -> &mut [T] {
        self.current.as_mut_slice()
    }

    /// Adds values that were taken out of the positions from `start` on before an encode to what that
    /// has committed there, and puts them back into what it has read; without a commit they are put
    /// back as they were.
    pub(crate) fn put_back(&mut self, start: usize, values: &[T], committed: bool) -> Result<()> {
        let part = start..start + values.len();
        let current = &mut self.current.as_mut_slice()[part.clone()];
        if !committed {
            current.copy_from_slice(values);
            return Ok(());
        }
        if let Some(other) = &mut self.other {
            other.as_mut_slice()[part].copy_from_slice(values);
        }
        add_finite(current, values, |sum, _| T::nearest(sum))
    }

    /// Replaces the values, each by the nearest there is that may be kept: those below the smallest
    /// normal number become zero. `what` they are is for the error.
    pub(crate) fn set<V: Stored>(&mut self, what: &str, values: &[V]) -> Result<()> {
        let expected = self.current.as_slice().len();
        if values.len() != expected {
            let given = values.len();
            return Err(Error::argument(format!(
                "the {what} has {given} elements, {expected} were expected"
            )));
        }
        let bad = |v: &V| !v.value().is_finite();
        if let Some(first) = values.iter().position(bad) {
            let count = values.iter().filter(|v| bad(v)).count() as u64;
            return Err(Error::NonFinite { count, first: first as u64 });
        }
        for (kept, &value) in self.current.as_mut_slice().iter_mut().zip(values) {
            *kept = T::nearest(normal_or_zero(value.value()));
        }
        self.undoable = false;
        Ok(())
    }
}

/// Adds to values; an error, and nothing has changed, if a sum is not finite. `store` is given a sum,
/// which is zero if it is below the smallest normal number, and its place.
pub(crate) fn add_finite<T: Stored>(
    kept: &mut [T],
    more: &[impl Stored],
    store: impl Fn(f32, usize) -> T,
) -> Result<()> {
    let sums = || kept.iter().zip(more).map(|(kept, more)| kept.value() + more.value());
    if let Some(first) = sums().position(|sum| !sum.is_finite()) {
        let count = sums().filter(|sum| !sum.is_finite()).count() as u64;
        return Err(Error::NonFinite { count, first: first as u64 });
    }
    let pairs = kept.iter_mut().zip(more).enumerate();
    for (i, (kept, more)) in pairs.filter(|(_, (_, more))| more.value() != 0.0) {
        *kept = store(normal_or_zero(kept.value() + more.value()), i);
    }
    Ok(())
}
