//! Sums what all ranks have sent to the owner of some positions, and encodes the sums again.
//!
//! The second half of a reduce-scatter of frames: every rank owns a range of positions, receives the
//! parts of all frames that lie there ([`Frame::split`]), adds them up, and makes a frame of the sums:
//! of all of them if the codec asks for every entry, and otherwise of the largest, three for two that
//! a rank has sent there on average. The owner's own residual takes part in the selection whole. What is left
//! of the sums, smaller ones and what the quantizer does not say, goes into it again: nothing is lost,
//! if the codec has one.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::codec::{Codec, State};
use crate::frame::{self, Destination, Frame, Layout, Scratch as Decoding};
use crate::memory::Keeps;
use crate::pack::Pattern;
use crate::quantize::Hints;
use crate::simd::in_standard_mode;
use crate::{Dtype, Error, Result, allocate};

/// How many sums an owner sends, for so many entries that one rank has sent on average.
///
/// What all ranks have sent lies in more places than one rank has sent, and sums that wait are sent
/// late: with 8 ranks that send 100 entries each, 120 of up to 800 sums go at once.
const SUMS: (u64, u64) = (6, 5);

/// What this rank owns of one tensor.
pub struct Owned<'a> {
    /// How the sums are encoded.
    pub codec: &'a Codec,
    /// This rank's state of the whole tensor, whose residual takes what is left.
    pub state: &'a mut State,
    /// The positions that it owns.
    pub range: Range<usize>,
    /// Whether to pass over what was sent: there is no frame of it then.
    pub unused: bool,
}

/// The results of merging what is owned of one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Merged {
    /// Bytes of the frame.
    pub nbytes: usize,
    /// Entries in it.
    pub count: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Memory for merging, to be used again: no call allocates once it has grown.
#[derive(Debug, Default)]
pub struct Scratch {
    decoding: Decoding,
    total: Vec<f32>,
    keys: Vec<u64>,
    positions: Vec<u32>,
    values: Vec<f32>,
}

/// Merges the parts of all ranks, and writes a frame for each of the pieces into `out`, one after
/// another, in place of what it held.
///
/// Of a codec that draws random numbers these are of the state's seed, stream and step, and others than
/// those of an encode. A codec without a memory drops what is left of the sums.
///
/// `messages` has what each rank has sent, in their order: for every piece in its order the frames of
/// the parts that cover its range. They are added up in float32 in that order. States must have been
/// encoded in this step, which can then be undone as ever; the residual of a state of a piece has
/// changed after an error at a later one, until then.
///
/// An error of the bytes names no piece; `merged` has an entry for each that was done.
pub fn merge(
    messages: &mut [&[u8]],
    pieces: &mut [Owned<'_>],
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
    merged: &mut Vec<Merged>,
) -> Result<()> {
    merged.clear();
    let mut at = 0;
    let done = in_standard_mode(|| {
        for piece in pieces {
            let start = Instant::now();
            let mut frame = Destination::behind(out, at);
            let count = scratch.merge(messages, piece, &mut frame)?;
            let nbytes = frame.frame().len();
            at += nbytes;
            merged.push(Merged { nbytes, count, elapsed: start.elapsed() });
        }
        let rest = messages.iter().map(|rest| rest.len()).sum::<usize>();
        if rest == 0 {
            return Ok(());
        }
        Err(Error::corrupt(format!("{rest} bytes follow the frames of what is owned here")))
    });
    out.truncate(at);
    done
}

impl Scratch {
    fn merge(
        &mut self,
        messages: &mut [&[u8]],
        piece: &mut Owned<'_>,
        out: &mut Destination<'_>,
    ) -> Result<u64> {
        let Range { start, end } = piece.range;
        if start > end || end > piece.state.numel() {
            let numel = piece.state.numel();
            return Err(Error::argument(format!(
                "entries {start} to {end} of a tensor of {numel} elements"
            )));
        }
        let (numel, ranks) = (end - start, messages.len().max(1) as u64);
        if piece.unused {
            return pass_over(messages, numel).map(|()| 0);
        }
        let sent = self.add_up(messages, numel)?;
        let (codec, state) = (piece.codec, &mut *piece.state);
        let is_dense = codec.sparsifier().is_dense();
        if !is_dense {
            if codec.memory().facts().keeps != Keeps::Nothing {
                state.join(start, &mut self.total)?;
            }
            // Zeros are not sent, so where ranks have them in other places, there are more sums than
            // one rank has sent. Who asks for all entries wants these, too.
            let all = codec.sparsifier().asks_for_all(state.numel());
            let few = (SUMS.0 * sent).div_ceil(SUMS.1 * ranks);
            self.select(if all { numel as u64 } else { few })?;
        }
        let Self { total, positions, values, .. } = self;
        let layout = Layout {
            dtype: Dtype::F32,
            sparsifier: codec.sparsifier().id(),
            quantizer: codec.quantizer(),
            indices: codec.indices(),
            pattern: Pattern::Any,
        };
        let key = codec.quantizer().seed().map(|seed| state.merging_key(seed));
        let hints = Hints { key, magnitude: None };
        if is_dense {
            frame::write_with(&layout, &hints, numel as u64, None, total, out)?;
        } else {
            let entries = (positions.len() < numel).then_some(positions.as_slice());
            frame::write_with(&layout, &hints, numel as u64, entries, values, out)?;
        }
        let count = if is_dense { numel } else { positions.len() };
        if codec.memory().facts().keeps == Keeps::Nothing {
            return Ok(count as u64);
        }
        Frame::parse_again(out.frame(), None)?.values_into(values)?;
        if is_dense {
            total.iter_mut().zip(&*values).for_each(|(left, &value)| *left -= value);
        } else {
            for (&position, &value) in positions.iter().zip(&*values) {
                total[position as usize] -= value;
            }
        }
        state.absorb(codec, start, total)?;
        Ok(count as u64)
    }

    /// Adds up the parts of one piece; returns how many entries there were.
    fn add_up(&mut self, messages: &mut [&[u8]], numel: usize) -> Result<u64> {
        self.total.clear();
        allocate::resize(&mut self.total, numel)?;
        let mut sent = 0;
        for message in messages {
            let mut at = 0;
            while at < numel {
                let (frame, end) = next_part(message, at, numel)?;
                frame.decode_add(&mut self.total[at..end], 1.0, &mut self.decoding)?;
                sent += frame.header().count;
                at = end;
            }
        }
        let bad = |value: &&f32| !value.is_finite();
        if let Some(first) = self.total.iter().position(|value| bad(&value)) {
            let count = self.total.iter().filter(bad).count() as u64;
            return Err(Error::NonFinite { count, first: first as u64 });
        }
        Ok(sent)
    }

    /// Finds the largest sums, so many of them at most and of equal ones the first, with their
    /// positions.
    fn select(&mut self, most: u64) -> Result<()> {
        let Self { total, keys, positions, values, .. } = self;
        let there = total.iter().filter(|&&value| value != 0.0).count();
        allocate::reserve(keys, there)?;
        keys.clear();
        // In descending order of magnitudes, which compare as their bits do, then by position.
        keys.extend(
            (0_u64..).zip(&*total).filter(|(_, value)| **value != 0.0).map(|(position, value)| {
                u64::from(!(value.to_bits() & 0x7FFF_FFFF)) << 32 | position
            }),
        );
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(there);
        if most < there {
            if most > 0 {
                keys.select_nth_unstable(most - 1);
            }
            keys.truncate(most);
        }
        allocate::reserve(positions, most)?;
        allocate::reserve(values, most)?;
        positions.clear();
        positions.extend(keys.iter().map(|&key| key as u32));
        positions.sort_unstable();
        values.clear();
        values.extend(positions.iter().map(|&position| total[position as usize]));
        Ok(())
    }
}

/// Takes the next part of a tensor off a message; returns also where it ends in the tensor.
fn next_part<'a>(message: &mut &'a [u8], at: usize, numel: usize) -> Result<(Frame<'a>, usize)> {
    let (frame, rest) = Frame::parse_first(message, Some((numel - at) as u64))?;
    let covered = frame.header().numel as usize;
    if covered == 0 {
        return Err(Error::corrupt("a part of a tensor covers none of its elements"));
    }
    *message = rest;
    Ok((frame, at + covered))
}

/// Takes the parts of one piece off all messages.
fn pass_over(messages: &mut [&[u8]], numel: usize) -> Result<()> {
    for message in messages {
        let mut at = 0;
        while at < numel {
            (_, at) = next_part(message, at, numel)?;
        }
    }
    Ok(())
}
