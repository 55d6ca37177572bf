//! Buckets: many tensors encoded or averaged in one call.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

use gradwire_core::bucket::{self, Average, AverageScratch, EncodeScratch, Mean, Outcome, Piece};
use gradwire_core::codec::Support;
use gradwire_core::codec::outside::CodeValues;
use gradwire_core::frame::Frame;
use gradwire_core::simd::in_standard_mode;
use gradwire_core::{Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::{Bytes, Positions, Tensor, Writable, WritableTensor, disjoint, to_numpy};
use crate::codec::Codec;
use crate::errors::to_py;
use crate::number::{number, optional};
use crate::outside::{plain, reading};
use crate::state::{Inner, State};

thread_local! {
    /// Scratch of this thread's calls, so that the steady state allocates nothing in their size.
    static ENCODING: RefCell<EncodeScratch> = RefCell::default();
    static AVERAGING: RefCell<AverageScratch> = RefCell::default();
}

/// Numbers that `encode_bucket` returns per piece.
const COLUMNS: usize = 6;

/// Encodes the tensors of a bucket and writes their frames one after another.
///
/// All entries of `x` are divided by `scale` before, in float32. `codecs`, `states`, `limits` of the size of a
/// frame in bytes and `positions` have an item for each piece: positions are those that a sparsifier in Python has
/// selected or None, and may be empty if there are none. `ends` has where its entries begin and end. `out` is
/// uint8, at least as long as the sum of the limits.
///
/// Returns int64, six numbers for each encoded piece: bytes of the frame, entries sent, entries asked for or -1,
/// entries trimmed, whether all of the input was zero, and nanoseconds; and why the next piece could not be
/// encoded, if that is so. The pieces before it are encoded, and their states have advanced.
#[pyfunction]
#[pyo3(signature = (x, scale, codecs, states, ends, limits, positions, out, bfloat16=false))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
pub(crate) fn encode_bucket<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    scale: f64,
    codecs: Vec<Bound<'py, Codec>>,
    states: Vec<Bound<'py, State>>,
    ends: &Bound<'py, PyAny>,
    limits: &Bound<'py, PyAny>,
    positions: Vec<Option<Bound<'py, PyAny>>>,
    out: &Bound<'py, PyAny>,
    bfloat16: bool,
) -> PyResult<(Bound<'py, PyAny>, Option<PyErr>)> {
    let ends: Vec<usize> = number("ends", ends)?;
    let limits: Vec<usize> = number("limits", limits)?;
    let tensor = Tensor::get("x", x, bfloat16)?;
    let mut out = Writable::bytes("out", out)?;
    disjoint("x", &out, &tensor)?;
    let (ranges, count) = (pairs(&ends)?, codecs.len());
    same_len("states", states.len(), count)?;
    same_len("ends", ranges.len(), count)?;
    same_len("limits", limits.len(), count)?;
    if !positions.is_empty() {
        same_len("positions", positions.len(), count)?;
    }
    let positions: Vec<Option<Positions>> = positions
        .iter()
        .map(|given| given.as_ref().map(|given| Positions::get("positions", given)).transpose())
        .collect::<PyResult<_>>()?;
    let (mut owners, mut guards) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (codec, state) in codecs.iter().zip(&states) {
        codec.get().own(state)?;
        owners.push(codec.get().owner(py)?);
        guards.push(state.get().lock(py)?);
    }
    let mut calls: Vec<_> = guards
        .iter()
        .zip(codecs.iter().zip(&states))
        .map(|(guard, (codec, state))| {
            let state = state.get();
            let coder = codec.get().coder()?;
            Some(coder.calls(guard.state.step(), state.name(), state.stream()))
        })
        .collect();
    let mut pieces: Vec<Piece<'_>> = guards
        .iter_mut()
        .zip(codecs.iter().zip(&mut calls))
        .enumerate()
        .map(|(i, (guard, (codec, calls)))| {
            let inner: &mut Inner = guard;
            let support = positions.get(i).and_then(Option::as_ref);
            Piece {
                codec: codec.get().inner(),
                state: &mut inner.state,
                range: ranges[i].clone(),
                support: support.map(|each| Support { positions: each.as_slice(), may_trim: true }),
                limit: limits[i],
                coder: calls.as_mut().map(|calls| calls as &mut dyn CodeValues),
            }
        })
        .collect();
    let (input, target) = (tensor.input(), out.as_mut_slice());
    let mut outcomes = Vec::with_capacity(count);
    let (encoding, found) = (&mut pieces, &mut outcomes);
    let done = py.detach(|| {
        // Taken rather than borrowed: what is coded in Python may come back here.
        let mut scratch = ENCODING.take();
        let scale = in_standard_mode(|| scale as f32);
        let done = bucket::encode(input, scale, encoding, &mut scratch, target, found);
        ENCODING.set(scratch);
        done
    });
    drop(pieces);
    for (((state, guard), outcome), owner) in
        states.iter().zip(&mut guards).zip(&outcomes).zip(owners)
    {
        state.get().committed(guard, outcome.encoded, owner, None);
    }
    let failed = states.get(outcomes.len());
    let error = done.err().map(|error| to_py(py, error, failed.and_then(|s| s.get().name())));
    Ok((to_numpy(py, "int64", &table(&outcomes))?, error))
}

/// Averages the frames of all ranks and writes the tensors of a bucket; returns nanoseconds for each piece.
///
/// `data` has all frames: the first of each rank is at its offset in `starts`, and its others follow, whose sizes
/// are its item of `sizes`. `ends` has where the entries of each piece begin and end in `out`, the bucket, and
/// `unused` whether to set it to zero instead of decoding its frames. Averages are times `scale`; with `senders`,
/// over the ranks that sent an entry instead of all; with `ranks`, over so many, whose sums the frames are.
/// What an error leaves in the bucket is undefined.
#[pyfunction]
#[pyo3(signature = (
    data, starts, sizes, ends, unused, out, scale, senders, bfloat16=false, ranks=None
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
pub(crate) fn average_bucket<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    starts: &Bound<'py, PyAny>,
    sizes: &Bound<'py, PyAny>,
    ends: &Bound<'py, PyAny>,
    unused: Vec<bool>,
    out: &Bound<'py, PyAny>,
    scale: f64,
    senders: bool,
    bfloat16: bool,
    ranks: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let starts: Vec<usize> = number("starts", starts)?;
    let sizes: Vec<Vec<usize>> = number("sizes", sizes)?;
    let ends: Vec<usize> = number("ends", ends)?;
    let ranks: Option<u32> = optional("ranks", ranks)?;
    let data = Bytes::get("data", data)?;
    let mut out = WritableTensor::get("out", out, bfloat16)?;
    out.disjoint("data", &data)?;
    let ranges = pairs(&ends)?;
    same_len("unused", unused.len(), ranges.len())?;
    same_len("sizes", sizes.len(), starts.len())?;
    let bytes = data.as_slice();
    let mut rest = Vec::with_capacity(starts.len());
    for (&start, sizes) in starts.iter().zip(&sizes) {
        same_len("sizes", sizes.len(), ranges.len())?;
        rest.push(bytes.get(start..).ok_or_else(|| beyond("a frame", start, bytes.len()))?);
    }
    let mean = match ranks {
        Some(ranks) => Mean::Of(ranks),
        None if senders => Mean::Senders,
        None => Mean::Ranks,
    };
    let average = Average { mean, scale };
    let mut nanoseconds = Vec::with_capacity(ranges.len());
    for range in &ranges {
        out.check(range)?;
    }
    py.detach(|| {
        let mut scratch = AVERAGING.take();
        let averaged = (|| {
            let mut frames = Vec::with_capacity(rest.len());
            for (i, range) in ranges.into_iter().enumerate() {
                let start = Instant::now();
                frames.clear();
                for (rest, sizes) in rest.iter_mut().zip(&sizes) {
                    let (frame, after) = rest.split_at_checked(sizes[i]).unwrap_or((rest, &[]));
                    frames.push(frame);
                    *rest = after;
                }
                if unused[i] {
                    out.output(range).clear();
                } else {
                    let target = out.output(range.clone());
                    match average.write(frames.iter().copied(), target, &mut scratch) {
                        Err(Error::Outside { .. }) => {
                            let numel = Some(range.len() as u64);
                            let plain = |bytes: &&[u8]| plain(&Frame::parse(bytes, numel)?);
                            let frames = frames.iter().map(plain).collect::<Result<Vec<_>>>()?;
                            let frames = frames.iter().map(Vec::as_slice);
                            average.write(frames, out.output(range), &mut scratch)?;
                        }
                        written => written?,
                    }
                }
                nanoseconds.push(since(start));
            }
            Ok(())
        })();
        AVERAGING.set(scratch);
        averaged
    })
    .map_err(|error| to_py(py, error, None))?;
    to_numpy(py, "int64", &nanoseconds)
}

/// Reads frames of these sizes that follow one another: the values of all, float32, one after another, and if
/// `positions` are asked for, those in their tensors, uint32.
#[pyfunction]
pub(crate) fn read_bucket<'py>(
    data: &Bound<'py, PyAny>,
    sizes: &Bound<'py, PyAny>,
    positions: bool,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let sizes: Vec<usize> = number("sizes", sizes)?;
    let (py, data) = (data.py(), Bytes::get("data", data)?);
    let (mut values, mut places) = (Vec::new(), Vec::new());
    let mut rest = data.as_slice();
    py.detach(|| {
        let (mut some_values, mut some_places) = (Vec::new(), Vec::new());
        for size in sizes {
            let (bytes, after) = rest.split_at_checked(size).unwrap_or((rest, &[]));
            let frame = Frame::parse(bytes, None)?;
            reading(&frame, |frame| frame.values_into(&mut some_values))?;
            values.extend_from_slice(&some_values);
            if positions {
                frame.indices_into(&mut some_places)?;
                places.extend_from_slice(&some_places);
            }
            rest = after;
        }
        Ok(())
    })
    .map_err(|error| to_py(py, error, None))?;
    Ok((to_numpy(py, "float32", &values)?, to_numpy(py, "uint32", &places)?))
}

/// What `encode_bucket` says of its pieces.
fn table(outcomes: &[Outcome]) -> Vec<i64> {
    let mut numbers = Vec::with_capacity(COLUMNS * outcomes.len());
    for Outcome { encoded, zero, elapsed } in outcomes {
        let target = encoded.target.map_or(-1, |target| target as i64);
        numbers.extend([
            encoded.nbytes as i64,
            encoded.count as i64,
            target,
            encoded.trimmed as i64,
            i64::from(*zero),
            elapsed.as_nanos() as i64,
        ]);
    }
    numbers
}

fn since(start: Instant) -> i64 {
    start.elapsed().as_nanos() as i64
}

/// Begins and ends as ranges.
pub(crate) fn pairs(ends: &[usize]) -> PyResult<Vec<Range<usize>>> {
    let (pairs, rest) = ends.as_chunks::<2>();
    if rest.is_empty() {
        return Ok(pairs.iter().map(|&[begin, end]| begin..end).collect());
    }
    Err(PyValueError::new_err(format!("ends must be pairs of numbers, got {} numbers", ends.len())))
}

pub(crate) fn same_len(name: &str, len: usize, expected: usize) -> PyResult<()> {
    if len == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{name} must have {expected} items, got {len}")))
}

pub(crate) fn beyond(what: &str, at: usize, len: usize) -> PyErr {
    PyValueError::new_err(format!("{what} begins or ends at {at}, past the end at {len}"))
}
