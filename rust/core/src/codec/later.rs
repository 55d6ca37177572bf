//! An encode in two halves, for a memory in one buffer.
//!
//! What an encode overwrites there cannot be had back. Where it is known only later whether an encode
//! counts, as of a gradient whose step may yet fail on another rank, the first half writes the frame
//! and nothing else, and is undone by forgetting it. The second half needs no more than the input and
//! the frame: the memory becomes the accumulated input without what the frame decodes to.

use super::{Codec, Encoded, State, Support, Workspace};
use crate::frame::{Destination, Frame};
use crate::quantize::Section;
use crate::scan::{Block, CHUNK, STEP, Share, Split, Update, steps};
use crate::simd::in_standard_mode;
use crate::simd::peak::NON_FINITE;
use crate::sparsify::{Route, Tracker};
use crate::{Error, Input, Result};

/// What an encode is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    /// Maximum size of the frame in bytes.
    pub max_len: Option<usize>,
    /// Whether the memory is written by [`State::settle`].
    pub later: bool,
}

/// The first half of an encode.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    codec: Codec,
    tracker: Tracker,
    /// Of the frame.
    checksum: Option<[u8; 4]>,
}

impl Codec {
    /// The first half of [`Codec::encode_into`], or with positions of [`Codec::encode_at`]: writes the
    /// same frame. [`State::settle`] is the second half.
    ///
    /// Between them the state is as before, and [`State::rollback`] leaves it so. Whatever else
    /// changes the state, such as another encode, drops the first half, too. An error if the state
    /// has two buffers, with which every encode can be undone.
    pub fn encode_later<'o>(
        &self,
        input: Input<'_>,
        state: &mut State,
        support: Option<Support<'_>>,
        max_len: Option<usize>,
        workspace: &mut Workspace,
        out: impl Into<Destination<'o>>,
    ) -> Result<Encoded> {
        let out = &mut out.into();
        out.clear();
        if !(state.is_in_place() && self.memory.facts().takes_in_place) {
            return Err(Error::argument(
                "only an encode into a memory with low_memory has a second half; any other one can \
                 be rolled back",
            ));
        }
        if let Some(support) = support {
            self.check_support(support, input.len())?;
        }
        state.prepare(self, input.len())?;
        let order = Order { max_len, later: true };
        let encoded = match support {
            None => self.encode_by_route(input, state, order, workspace, out),
            Some(support) => self.encode_support(input, state, support, order, workspace, out),
        };
        if encoded.is_err() {
            out.clear();
        }
        encoded
    }
}

impl State {
    /// Remembers the first half of an encode, which has written this frame.
    pub(super) fn postpone(&mut self, codec: &Codec, tracker: Tracker, frame: &[u8]) {
        let checksum = Frame::checksum_of(frame);
        self.pending = Some(Pending { codec: *codec, tracker, checksum });
    }

    /// The second half of the last encode: makes of the memory what [`Codec::encode_into`] would have
    /// made of it, from the same input and the frame.
    ///
    /// On an error the first half is dropped, and the state is as before it; but if the input has
    /// changed in between to something that is not finite, the residual may hold parts of it.
    pub fn settle(
        &mut self,
        input: Input<'_>,
        frame: &[u8],
        workspace: &mut Workspace,
    ) -> Result<()> {
        let Some(Pending { codec, tracker, checksum }) = self.pending.take() else {
            return Err(Error::argument(
                "there is nothing to settle: no encode_later has succeeded since the last encode, \
                 rollback, load or reset",
            ));
        };
        self.check(&codec, input.len())?;
        if Frame::checksum_of(frame) != checksum {
            return Err(Error::argument("the frame is not the one that encode_later has written"));
        }
        let frame = Frame::parse(frame, Some(input.len() as u64))?;
        workspace.begin();
        in_standard_mode(|| match codec.sparsifier().route() {
            Route::Every => codec.settle_dense(input, self, frame, workspace),
            Route::Selected | Route::Given => codec.settle_sparse(input, self, frame, workspace),
        })?;
        self.commit(&codec, tracker);
        Ok(())
    }
}

impl Codec {
    /// The accumulated input takes the place of the memory, and the entries of the frame leave it.
    fn settle_sparse(
        &self,
        input: Input<'_>,
        state: &mut State,
        frame: Frame<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        // What they are has to be known before it is overwritten: in bfloat16 it is rounded there.
        frame.indices_into(&mut workspace.keys)?;
        let tensor = self.tensor(input, state, 1.0);
        let candidates = workspace.scanner.candidates_mut();
        let values = candidates.replace(&workspace.keys);
        tensor.gather(&workspace.keys, values);
        candidates.check_memory()?;
        candidates.check().map_err(|_| Error::Changed)?;
        let codes = &mut Vec::new();
        let section = frame.section(codes)?;
        self.overwrite(input, state, workspace)?;
        self.subtract((frame.value_coding(), section), state, workspace);
        Ok(())
    }

    /// The same in one read, block by block.
    fn settle_dense(
        &self,
        input: Input<'_>,
        state: &mut State,
        frame: Frame<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let frame = frame.with(workspace.scanner.kernels);
        let codes = &mut Vec::new();
        let section = frame.section(codes)?;
        workspace.ask()?;
        let rest = Rest { update: self.update(input, state, 1.0), frame, section };
        let workers = workspace.scanner.parallel(input.len(), CHUNK, rest, keep_rest);
        let peak = workers.iter().map(|worker| worker.peak).max().unwrap_or(0);
        if peak >= NON_FINITE { Err(state.disturbed()) } else { Ok(()) }
    }
}

/// What is read and overwritten, and the frame of all of it.
struct Rest<'a> {
    update: Update<'a>,
    frame: Frame<'a>,
    section: Section<'a>,
}

impl Split for Rest<'_> {
    fn split_at(self, middle: usize) -> (Self, Self) {
        let (update, later) = self.update.split_at(middle);
        (Self { update, ..self }, Self { update: later, ..self })
    }
}

/// Keeps what the frame does not say of the share of a thread.
fn keep_rest(share: Share<'_, Rest<'_>>) {
    let Share { kernels, range: all, what: Rest { mut update, frame, section }, worker } = share;
    let (mut decoder, mut sent, mut peak) = (frame.decoder(section), [0.0; STEP], 0);
    for range in steps(0..all.len(), STEP) {
        update.fetch(kernels, range.start + STEP);
        let sent = &mut sent[..range.len()];
        decoder.decode(all.start + range.start, None, sent);
        let left = update.take(Block::new(kernels, range.clone(), &mut worker.scratch));
        peak = peak.max(kernels.peak(left));
        kernels.subtract(left, sent);
        update.keep(kernels, &range, left);
    }
    worker.peak = peak;
}
