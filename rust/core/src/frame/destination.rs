//! Where frames are written.

use crate::{Error, Result, allocate};

/// Memory that a frame is written to, at its start or behind other frames.
#[derive(Debug)]
pub struct Destination<'a> {
    memory: Memory<'a>,
    /// Where the frame begins.
    start: usize,
    /// Bytes of the frame, once it is there.
    len: usize,
}

#[derive(Debug)]
enum Memory<'a> {
    /// Ends where the frame does.
    Exact(&'a mut Vec<u8>),
    /// Grows, and keeps whatever is behind the frame.
    Growing(&'a mut Vec<u8>),
    Fixed {
        out: &'a mut [u8],
        /// Whether an encode that fails must not have written to it.
        spared: bool,
    },
}

impl<'a> Destination<'a> {
    /// From byte `start` of `out` on, which is no shorter. That grows, and never shrinks: bytes behind
    /// the frame mean nothing, and are there so that the next frame need not set them to zero first.
    pub fn behind(out: &'a mut Vec<u8>, start: usize) -> Self {
        Self { memory: Memory::Growing(out), start, len: 0 }
    }

    /// The start of a slice, of which nothing is known after an error: faster than what
    /// `From<&mut [u8]>` gives, which is as it was then.
    pub fn unspared(out: &'a mut [u8]) -> Self {
        Self { memory: Memory::Fixed { out, spared: false }, start: 0, len: 0 }
    }

    /// Whether an encode that fails must not have written to it.
    pub(crate) fn is_spared(&self) -> bool {
        matches!(self.memory, Memory::Fixed { spared: true, .. })
    }

    /// The frame that was written last; nothing after an error.
    pub fn frame(&self) -> &[u8] {
        let bytes = match &self.memory {
            Memory::Exact(out) | Memory::Growing(out) => out.as_slice(),
            Memory::Fixed { out, .. } => out,
        };
        &bytes[self.start..][..self.len]
    }

    /// Memory for a frame of so many bytes, in place of the last one: what is there is of no meaning.
    pub(crate) fn place(&mut self, len: usize) -> Result<&mut [u8]> {
        let (start, end) = (self.start, self.start + len);
        let bytes = match &mut self.memory {
            Memory::Exact(out) => {
                if out.capacity() < end {
                    // Where frames outgrow their memory, the next one may be longer still. Room takes
                    // no page before it is written to.
                    let room = if out.capacity() == 0 { 0 } else { end / 8 };
                    // New pages are zeros already; the old ones go first.
                    **out = Vec::new();
                    **out = allocate::zeros(end + room).or_else(|_| allocate::zeros(end))?;
                }
                // Not cleared first: a buffer used again is not filled with zeros again.
                out.resize(end, 0);
                out.as_mut_slice()
            }
            Memory::Growing(out) => {
                if out.len() < end {
                    allocate::resize(out, end)?;
                }
                out.as_mut_slice()
            }
            Memory::Fixed { out, .. } => out,
        };
        let have = bytes.len().saturating_sub(start);
        let place = bytes.get_mut(start..end).ok_or_else(|| {
            Error::argument(format!("a frame of {len} bytes is longer than the {have} left in out"))
        })?;
        self.len = len;
        Ok(place)
    }

    /// Forgets the frame.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        if let Memory::Exact(out) = &mut self.memory {
            out.clear();
        }
    }
}

impl<'a> From<&'a mut Vec<u8>> for Destination<'a> {
    /// The frame replaces what the vector holds.
    fn from(out: &'a mut Vec<u8>) -> Self {
        Self { memory: Memory::Exact(out), start: 0, len: 0 }
    }
}

impl<'a> From<&'a mut [u8]> for Destination<'a> {
    /// The frame begins the slice, which is as it was after an error; a longer frame is one.
    fn from(out: &'a mut [u8]) -> Self {
        Self { memory: Memory::Fixed { out, spared: true }, start: 0, len: 0 }
    }
}
