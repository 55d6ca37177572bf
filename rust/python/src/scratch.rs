//! Memory that is used again from call to call, and how much of it is kept.
//!
//! Memory that is new to a process costs a page fault for each 4 KiB: 16,000 of them take longer than the
//! encode of 25 million entries that needs 64 MB. So nothing that the next step needs is given back
//! between two encodes with a state, however much it is. It goes with a state, or with the thread.

use std::cell::{Cell, RefCell};
use std::sync::Mutex;

use gradwire_core::codec::Workspace;
use gradwire_core::frame::Scratch;

/// Bytes of scratch that a thread keeps anyway from one encode to the next, and as many for a frame that
/// is going to be copied out: enough for the selection of four million entries at a time. What a call
/// without a state needs beyond that is given back when it ends.
pub(crate) const KEPT: usize = 64 << 20;

/// The same for decodes.
const KEPT_TO_DECODE: usize = 1 << 20;

/// Bytes from which on the memory of a frame is worth being used again: allocators keep less at hand.
const LARGE: usize = 1 << 20;

/// Frames whose memory waits for the next ones.
const SPARE: usize = 2;

/// How much memory a frame may have for each byte: lengths vary from step to step, by a third with SIDCo.
const ROOM: usize = 2;

thread_local! {
    static WORKSPACE: RefCell<Option<Workspace>> = const { RefCell::new(None) };
    static STAGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// Whether an encode with a state has been here, and no state was dropped since.
    static KEEPS_ALL: Cell<bool> = const { Cell::new(false) };
}

/// Memory of frames of this process that exist no longer: of at most [`SPARE`], each of at most [`ROOM`]
/// times the longest of late.
struct Frames {
    /// Bytes of the longest frame encoded with a state of late: a longer one counts at once, and is half
    /// forgotten after eleven shorter ones. None before the first.
    longest: usize,
    spare: Vec<Vec<u8>>,
}

impl Frames {
    const NONE: Self = Self { longest: 0, spare: Vec::new() };

    fn saw(&mut self, len: usize) {
        self.longest = len.max(self.longest - self.longest / 16);
    }

    /// The largest memory there is that `fits`.
    fn take(&mut self, fits: impl Fn(usize) -> bool) -> Option<Vec<u8>> {
        let all = self.spare.iter().enumerate();
        let fitting = all.filter(|(_, bytes)| fits(bytes.capacity()));
        let (largest, _) = fitting.max_by_key(|(_, bytes)| bytes.capacity())?;
        Some(self.spare.swap_remove(largest))
    }

    /// Keeps this memory, if the next frames may need it; what is to be given back instead.
    fn put(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        if !(LARGE..=ROOM * self.longest).contains(&bytes.capacity()) {
            return bytes;
        }
        self.spare.push(bytes);
        let smallest = (0..self.spare.len()).min_by_key(|&at| self.spare[at].capacity());
        let many = smallest.filter(|_| self.spare.len() > SPARE);
        many.map_or_else(Vec::new, |smallest| self.spare.swap_remove(smallest))
    }
}

/// It is never waited for: a forked child may find it locked for ever.
static FRAMES: Mutex<Frames> = Mutex::new(Frames::NONE);

/// Has this thread keep what the calls of a training step need, until a state is dropped.
pub(crate) fn keep_all() {
    KEEPS_ALL.set(true);
}

/// Gives back what a thread keeps because of a state.
pub(crate) fn release() {
    // A thread that ends has nothing left.
    if KEEPS_ALL.try_with(|keeps| keeps.replace(false)).unwrap_or(false) {
        with_workspace(|_| ());
        with_staged(|_| ());
        with_scratch(|_| ());
    }
    let frames = FRAMES.try_lock().map(|mut frames| std::mem::replace(&mut *frames, Frames::NONE));
    drop(frames);
}

// All of it is taken rather than borrowed: a signal handler may run Python in the middle of a call,
// and that call whatever it likes.

/// Has an encode work with this thread's scratch.
pub(crate) fn with_workspace<T>(work: impl FnOnce(&mut Workspace) -> T) -> T {
    let mut workspace = WORKSPACE.take().unwrap_or_default();
    workspace.follow();
    let result = work(&mut workspace);
    if KEEPS_ALL.get() || workspace.bytes() <= KEPT {
        WORKSPACE.set(Some(workspace));
    }
    result
}

/// Has a frame written that is then copied out.
pub(crate) fn with_staged<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut staged = STAGED.take();
    let result = work(&mut staged);
    if KEEPS_ALL.get() || staged.capacity() <= KEPT {
        STAGED.set(staged);
    }
    result
}

/// Has a decode work with this thread's scratch.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = SCRATCH.take();
    let result = work(&mut scratch);
    if KEEPS_ALL.get() || scratch.bytes() <= KEPT_TO_DECODE {
        SCRATCH.set(scratch);
    }
    result
}

/// Memory for a frame: the largest of those that exist no longer, if there are any. Its bytes mean nothing.
pub(crate) fn spare() -> Vec<u8> {
    FRAMES.try_lock().ok().and_then(|mut frames| frames.take(|_| true)).unwrap_or_default()
}

/// A frame that was written to [`spare`] memory, in memory of about its size.
pub(crate) fn fitted(bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.len();
    let fits = |capacity| (len..=LARGE.max(ROOM * len)).contains(&capacity);
    let other = FRAMES.try_lock().ok().and_then(|mut frames| {
        frames.saw(len);
        if fits(bytes.capacity()) { None } else { frames.take(fits) }
    });
    if fits(bytes.capacity()) {
        return bytes;
    }
    let mut other = other.unwrap_or_default();
    other.clear();
    if other.try_reserve_exact(len).is_err() {
        return bytes;
    }
    other.extend_from_slice(&bytes);
    recycle(bytes);
    other
}

/// Takes the memory of a frame, if others are going to need it.
pub(crate) fn recycle(bytes: Vec<u8>) {
    let rest = FRAMES.try_lock().map(|mut frames| frames.put(bytes));
    drop(rest);
}
