//! The buffers of a memory: a pair that swaps.

use super::storage::Stored;
use crate::buffer::Buffer;
use crate::simd::normal_or_zero;
use crate::{Error, Result};

/// Two buffers that swap on success.
///
/// An encode reads one and writes the other; only when the frame is done do they change roles. So a
/// failed encode leaves the values as they were, a successful one can be undone exactly, and no pass
/// over memory is spent on either.
#[derive(Debug, Clone)]
pub(crate) struct Buffers<T: Stored = f32> {
    current: Buffer<T>,
    /// Takes the next values.
    other: Buffer<T>,
    /// Whether `other` holds the values before the last encode.
    undoable: bool,
}

impl<T: Stored> Buffers<T> {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Result<Self> {
        Ok(Self { current: Buffer::zeros(len)?, other: Buffer::zeros(len)?, undoable: false })
    }

    /// The values before the last commit, if they are there yet, and those that it has made, to be
    /// amended. The commit can still be undone.
    pub(crate) fn amend(&mut self) -> (Option<&[T]>, &mut [T]) {
        let before = self.undoable.then_some(self.other.as_slice());
        (before, self.current.as_mut_slice())
    }

    /// Zeros again, in the memory that there is: nothing can go wrong.
    pub fn clear(&mut self) {
        self.current.as_mut_slice().fill(T::zeroed());
        self.undoable = false;
    }

    /// The bytes of both buffers.
    pub fn nbytes(&self) -> usize {
        2 * size_of_val(self.as_slice())
    }

    /// The values.
    pub fn as_slice(&self) -> &[T] {
        self.current.as_slice()
    }

    /// The values, and the buffer that the next ones are written to. Ends the chance to undo.
    pub(crate) fn begin(&mut self) -> (&[T], &mut [T]) {
        self.undoable = false;
        (self.current.as_slice(), self.other.as_mut_slice())
    }

    /// The buffer that [`Buffers::begin`] gave out to be written.
    pub(crate) fn next(&self) -> &[T] {
        self.other.as_slice()
    }

    /// As [`Buffers::next`], to patch it.
    pub(crate) fn next_mut(&mut self) -> &mut [T] {
        self.other.as_mut_slice()
    }

    /// Makes the written buffer the values.
    pub(crate) fn commit(&mut self) {
        std::mem::swap(&mut self.current, &mut self.other);
        self.undoable = true;
    }

    /// Whether [`Buffers::rollback`] would succeed.
    pub(crate) fn can_roll_back(&self) -> bool {
        self.undoable
    }

    /// Goes back to the values before the last commit.
    pub(crate) fn rollback(&mut self) {
        std::mem::swap(&mut self.current, &mut self.other);
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
        self.other.as_mut_slice()[part].copy_from_slice(values);
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
