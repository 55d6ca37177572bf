//! Scratch memory that each thread reuses from call to call, and how much of it is kept.

use std::cell::RefCell;

use gradwire_core::codec::Workspace;
use gradwire_core::frame::Scratch;

/// Bytes of scratch that a thread keeps from one encode to the next, and as many for a frame that is
/// going to be copied out: enough for the selection of four million entries at a time. What an encode
/// needs beyond that is given back when it ends.
pub(crate) const KEPT_TO_ENCODE: usize = 64 << 20;

/// The same for decodes.
const KEPT_TO_DECODE: usize = 1 << 20;

thread_local! {
    static WORKSPACE: RefCell<Option<Workspace>> = const { RefCell::new(None) };
    static STAGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

// All of it is taken rather than borrowed: a signal handler may run Python in the middle of a call,
// and that call whatever it likes.

/// Has an encode work with this thread's scratch.
pub(crate) fn with_workspace<T>(work: impl FnOnce(&mut Workspace) -> T) -> T {
    let mut workspace = WORKSPACE.take().unwrap_or_default();
    workspace.follow();
    let result = work(&mut workspace);
    if workspace.bytes() <= KEPT_TO_ENCODE {
        WORKSPACE.set(Some(workspace));
    }
    result
}

/// Has a frame written that is then copied out.
pub(crate) fn with_staged<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut staged = STAGED.take();
    let result = work(&mut staged);
    if staged.capacity() <= KEPT_TO_ENCODE {
        STAGED.set(staged);
    }
    result
}

/// Has a decode work with this thread's scratch.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = SCRATCH.take();
    let result = work(&mut scratch);
    if scratch.bytes() <= KEPT_TO_DECODE {
        SCRATCH.set(scratch);
    }
    result
}
