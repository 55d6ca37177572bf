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

thread_local! {
    static WORKSPACE: RefCell<Option<Workspace>> = const { RefCell::new(None) };
    static STAGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// Whether an encode with a state has been here, and no state was dropped since.
    static KEEPS_ALL: Cell<bool> = const { Cell::new(false) };
}

/// The memory of frames of this process that exist no longer; the bytes of the last one that was encoded
/// with a state, or 0. It is never waited for: a forked child may find it locked for ever.
static FRAMES: Mutex<(usize, Vec<Vec<u8>>)> = Mutex::new((0, Vec::new()));

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
    let spare = FRAMES.try_lock().map(|mut frames| std::mem::take(&mut *frames));
    drop(spare);
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

/// Memory for a frame: that of one that exists no longer, if there is any. Its bytes mean nothing.
pub(crate) fn spare() -> Vec<u8> {
    FRAMES.try_lock().ok().and_then(|mut frames| frames.1.pop()).unwrap_or_default()
}

/// A frame that was written to [`spare`] memory, without much that it does not need.
pub(crate) fn fitted(bytes: Vec<u8>) -> Vec<u8> {
    if let Ok(mut frames) = FRAMES.try_lock() {
        frames.0 = bytes.len();
    }
    if bytes.capacity() - bytes.len() <= LARGE.max(bytes.len() / 8) {
        return bytes;
    }
    let mut exact = Vec::new();
    if exact.try_reserve_exact(bytes.len()).is_err() {
        return bytes;
    }
    exact.extend_from_slice(&bytes);
    recycle(bytes);
    exact
}

/// Takes the memory of a frame, if another is going to be of about its size.
pub(crate) fn recycle(bytes: Vec<u8>) {
    if bytes.capacity() < LARGE {
        return;
    }
    if let Ok(mut frames) = FRAMES.try_lock() {
        let (last, spare) = &mut *frames;
        if spare.len() < SPARE && (*last / 2..=*last * 2).contains(&bytes.capacity()) {
            spare.push(bytes);
        }
    }
}
