//! Ranges of a bucket: frames are cut into those of every range, and what all ranks have sent of one
//! range is merged by its owner.

use std::borrow::Cow;
use std::cell::RefCell;

use gradwire_core::Result;
use gradwire_core::bucket::{self, MergeScratch, Merged, Owned};
use gradwire_core::frame::{Destination, Frame, Split};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bucket::{beyond, pairs, same_len};
use crate::buffer::{Bytes, Writable, empty, to_numpy};
use crate::codec::Codec;
use crate::errors::to_py;
use crate::number::number;
use crate::outside::plain;
use crate::scratch::KEPT;
use crate::state::{Inner, State};

/// Each takes memory, whether anything is sent to it or not.
const MOST_RANKS: usize = 1 << 20;

thread_local! {
    /// Scratch of this thread's calls.
    static SPLITTING: RefCell<Vec<Split>> = RefCell::default();
    static MERGING: RefCell<(MergeScratch, Vec<u8>)> = RefCell::default();
}

/// Cuts the frames of a bucket by owner, one of `ranks`: all pieces' are in `data`, one after another, of these
/// sizes. For each piece, `bounds` has where ranges of its entries begin and end, ascending from 0 to their
/// number, and `owners` whose each of them is.
///
/// Returns uint8 for each owner: the frames of its ranges, one after another. A range has one or two; see
/// `Frame.split`.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn split_bucket<'py>(
    data: &Bound<'py, PyAny>,
    sizes: &Bound<'py, PyAny>,
    bounds: &Bound<'py, PyAny>,
    owners: &Bound<'py, PyAny>,
    ranks: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let sizes: Vec<usize> = number("sizes", sizes)?;
    let bounds: Vec<Vec<u64>> = number("bounds", bounds)?;
    let owners: Vec<Vec<usize>> = number("owners", owners)?;
    let ranks: usize = number("ranks", ranks)?;
    let (py, data) = (data.py(), Bytes::get("data", data)?);
    if ranks > MOST_RANKS {
        let problem = format!("ranks must be at most {MOST_RANKS}, got {ranks}");
        return Err(PyValueError::new_err(problem));
    }
    same_len("bounds", bounds.len(), sizes.len())?;
    same_len("owners", owners.len(), sizes.len())?;
    for (bounds, owners) in bounds.iter().zip(&owners) {
        same_len("owners of a piece", owners.len(), bounds.len().saturating_sub(1))?;
        if let Some(owner) = owners.iter().find(|&&owner| owner >= ranks) {
            let problem = format!("owner {owner} of {ranks}");
            return Err(PyValueError::new_err(problem));
        }
    }
    let raise = |error| to_py(py, error, None);
    let bytes = py.detach(|| readable(data.as_slice(), &sizes)).map_err(raise)?;
    let mut splits = SPLITTING.take();
    splits.resize_with(splits.len().max(bytes.len()), Split::default);
    let frames = py
        .detach(|| {
            let cuts = bytes.iter().zip(&bounds).zip(&mut splits);
            cuts.map(|((bytes, bounds), split)| {
                let frame = Frame::parse_again(bytes, None)?;
                frame.split(bounds, split)?;
                Ok(frame)
            })
            .collect::<Result<Vec<_>>>()
        })
        .map_err(raise)?;
    let mut lens = vec![0; ranks];
    for (split, owners) in splits.iter().zip(&owners) {
        split.parts().iter().for_each(|part| lens[owners[part.range]] += part.nbytes());
    }
    let messages: Vec<_> =
        lens.iter().map(|&len| empty(py, len, "uint8")).collect::<PyResult<_>>()?;
    let mut outs: Vec<_> =
        messages.iter().map(|each| Writable::bytes("messages", each)).collect::<PyResult<_>>()?;
    let mut rest: Vec<_> = outs.iter_mut().map(Writable::as_mut_slice).collect();
    py.detach(|| {
        for ((frame, split), owners) in frames.iter().zip(&splits).zip(&owners) {
            for part in split.parts() {
                let message = &mut rest[owners[part.range]];
                let (own, after) = std::mem::take(message).split_at_mut(part.nbytes());
                *message = after;
                frame.write_part(split, part, Destination::unspared(own))?;
            }
        }
        Ok(())
    })
    .map_err(raise)?;
    if splits.iter().map(Split::bytes).sum::<usize>() <= KEPT {
        SPLITTING.set(splits);
    }
    Ok(messages)
}

/// Frames of these sizes, checked; where values are coded outside, others with the same entries.
fn readable<'a>(mut data: &'a [u8], sizes: &[usize]) -> Result<Vec<Cow<'a, [u8]>>> {
    let next = |&size: &usize| {
        let (bytes, after) = data.split_at_checked(size).unwrap_or((data, &[]));
        data = after;
        let frame = Frame::parse(bytes, None)?;
        if frame.outside().is_none() { Ok(bytes.into()) } else { plain(&frame).map(Cow::from) }
    };
    sizes.iter().map(next).collect()
}

/// Sums what all ranks have sent of the entries that this rank owns, and encodes the largest sums.
///
/// As many of each piece as a rank has sent on average, or all if its codec asks for all entries, as by a ratio of
/// 1. What is left of the sums is added to the residuals of the states, which were encoded before in the same
/// step: undoing that undoes this.
///
/// `messages` are what each rank has sent: for each piece the frames of its parts, as from `split_bucket`, from
/// `starts` on. `codecs` and `states` have an item for each piece; `ends` has which of its entries are owned, first
/// and the first that follows; `unused` says whether to pass over what was sent of it.
///
/// Returns uint8, a frame for each piece that is used, of the entries that are owned; int64, three numbers for
/// each of them: bytes, entries, and nanoseconds; and why the next piece could not be merged, if that is so. The
/// residuals of those before it have changed.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)]
pub(crate) fn merge_bucket<'py>(
    py: Python<'py>,
    messages: Vec<Bound<'py, PyAny>>,
    starts: &Bound<'py, PyAny>,
    codecs: Vec<Bound<'py, Codec>>,
    states: Vec<Bound<'py, State>>,
    ends: &Bound<'py, PyAny>,
    unused: Vec<bool>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Option<PyErr>)> {
    let starts: Vec<usize> = number("starts", starts)?;
    let ends: Vec<usize> = number("ends", ends)?;
    let (ranges, count) = (pairs(&ends)?, codecs.len());
    same_len("states", states.len(), count)?;
    same_len("ends", ranges.len(), count)?;
    same_len("unused", unused.len(), count)?;
    same_len("starts", starts.len(), messages.len())?;
    let messages: Vec<_> =
        messages.iter().map(|each| Bytes::get("messages", each)).collect::<PyResult<_>>()?;
    let mut rest = Vec::with_capacity(starts.len());
    for (message, start) in messages.iter().zip(starts) {
        let bytes = message.as_slice();
        rest.push(bytes.get(start..).ok_or_else(|| beyond("a frame", start, bytes.len()))?);
    }
    let mut guards = Vec::with_capacity(count);
    for (codec, state) in codecs.iter().zip(&states) {
        guards.push(codec.get().own(state)?.lock(py)?);
    }
    let mut pieces = Vec::with_capacity(count);
    for (((guard, codec), range), unused) in guards.iter_mut().zip(&codecs).zip(ranges).zip(unused)
    {
        let inner: &mut Inner = guard;
        pieces.push(Owned { codec: codec.get().inner(), state: &mut inner.state, range, unused });
    }
    let (mut scratch, mut out) = MERGING.take();
    let mut merged = Vec::new();
    let done =
        py.detach(|| bucket::merge(&mut rest, &mut pieces, &mut scratch, &mut out, &mut merged));
    let name = states.get(merged.len()).and_then(|state| state.get().name());
    let error = done.err().map(|error| to_py(py, error, name));
    let frames = to_numpy(py, "uint8", &out)?;
    MERGING.set((scratch, out));
    Ok((frames, to_numpy(py, "int64", &table(&merged))?, error))
}

/// What `merge_bucket` says of its pieces.
fn table(merged: &[Merged]) -> Vec<i64> {
    let row =
        |each: &Merged| [each.nbytes as i64, each.count as i64, each.elapsed.as_nanos() as i64];
    merged.iter().flat_map(row).collect()
}
