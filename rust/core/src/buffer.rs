//! Float32 memory aligned to a cache line.

use std::alloc;

use bytemuck::{Pod, Zeroable};

#[cfg(all(target_os = "linux", not(miri)))]
use crate::pages::Pages;
use crate::{Result, room};

/// One cache line.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A fixed-size float32 buffer that begins on a cache line, on huge pages if it is large.
pub(crate) struct Buffer {
    memory: Memory,
    len: usize,
}

enum Memory {
    Lines(Vec<Line>),
    #[cfg(all(target_os = "linux", not(miri)))]
    Pages(Pages),
}

impl Memory {
    /// Zeros for `len` elements at least.
    fn zeros(len: usize) -> Result<Self> {
        #[cfg(all(target_os = "linux", not(miri)))]
        if let Some(pages) = len.checked_mul(size_of::<f32>()).and_then(Pages::zeros) {
            return Ok(Self::Pages(pages));
        }
        room::zeros(len.div_ceil(16)).map(Self::Lines)
    }

    fn as_slice(&self) -> &[f32] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice(lines),
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => bytemuck::cast_slice(pages.as_slice()),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [f32] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice_mut(lines),
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => bytemuck::cast_slice_mut(pages.as_mut_slice()),
        }
    }
}

impl Buffer {
    /// A buffer of zeros. Pages are not touched before they are written.
    pub fn zeros(len: usize) -> Result<Self> {
        Ok(Self { memory: Memory::zeros(len)?, len })
    }

    /// The elements.
    pub fn as_slice(&self) -> &[f32] {
        &self.memory.as_slice()[..self.len]
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.memory.as_mut_slice()[..self.len]
    }
}

impl Clone for Buffer {
    /// Like a vector's, this ends the process where there is no memory.
    fn clone(&self) -> Self {
        let Ok(mut copy) = Self::zeros(self.len) else {
            alloc::handle_alloc_error(alloc::Layout::for_value(self.as_slice()))
        };
        copy.as_mut_slice().copy_from_slice(self.as_slice());
        copy
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer(len = {})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_zero_and_as_long_as_asked() {
        // Under Miri, nothing is mapped, and each element takes a microsecond.
        let long = if cfg!(miri) { 3000 } else { (4 << 20) + 1 };
        for len in [0, 1, 15, 16, 17, 1000, long] {
            let mut buffer = Buffer::zeros(len).unwrap();
            assert_eq!(buffer.as_slice(), vec![0.0; len]);
            assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
            buffer.as_mut_slice().fill(1.0);
            let mut copy = buffer.clone();
            copy.as_mut_slice().fill(2.0);
            assert_eq!(buffer.as_slice(), vec![1.0; len]);
            assert_eq!(copy.as_slice(), vec![2.0; len]);
        }
    }
}
