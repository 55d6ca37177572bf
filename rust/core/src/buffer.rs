//! Memory aligned to a cache line.

use std::alloc;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

#[cfg(all(target_os = "linux", not(miri)))]
use crate::pages::Pages;
use crate::{Result, allocate};

/// One cache line.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

const LINE: usize = 64;

/// A buffer of fixed size that begins on a cache line, on huge pages if it is large.
pub(crate) struct Buffer<T = f32> {
    memory: Memory,
    len: usize,
    of: PhantomData<T>,
}

enum Memory {
    Lines(Vec<Line>),
    #[cfg(all(target_os = "linux", not(miri)))]
    Pages(Pages),
}

impl Memory {
    /// So many bytes of zeros at least.
    fn zeros(bytes: usize) -> Result<Self> {
        #[cfg(all(target_os = "linux", not(miri)))]
        if let Some(pages) = Pages::zeros(bytes) {
            return Ok(Self::Pages(pages));
        }
        allocate::zeros(bytes.div_ceil(LINE)).map(Self::Lines)
    }

    fn as_slice<T: Pod>(&self) -> &[T] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice(lines),
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => bytemuck::cast_slice(pages.as_slice()),
        }
    }

    fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice_mut(lines),
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => bytemuck::cast_slice_mut(pages.as_mut_slice()),
        }
    }
}

impl<T: Pod> Buffer<T> {
    /// A buffer of zeros. Pages are not touched before they are written.
    pub fn zeros(len: usize) -> Result<Self> {
        let memory = Memory::zeros(len.saturating_mul(size_of::<T>()))?;
        Ok(Self { memory, len, of: PhantomData })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        &self.memory.as_slice()[..self.len]
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.memory.as_mut_slice()[..self.len]
    }
}

impl<T: Pod> Clone for Buffer<T> {
    /// Like a vector's, this ends the process where there is no memory.
    fn clone(&self) -> Self {
        let Ok(mut copy) = Self::zeros(self.len) else {
            alloc::handle_alloc_error(alloc::Layout::for_value(self.as_slice()))
        };
        copy.as_mut_slice().copy_from_slice(self.as_slice());
        copy
    }
}

impl<T> Default for Buffer<T> {
    /// An empty one.
    fn default() -> Self {
        Self { memory: Memory::Lines(Vec::new()), len: 0, of: PhantomData }
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer(len = {})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_zero_and_as_long_as_asked() {
        check(1.0, 2.0);
        check(half::bf16::ONE, half::bf16::NEG_ONE);
    }

    fn check<T: Pod + PartialEq + std::fmt::Debug>(one: T, other: T) {
        // Under Miri, nothing is mapped, and each element takes a microsecond.
        let long = if cfg!(miri) { 3000 } else { (4 << 20) + 1 };
        for len in [0, 1, 15, 16, 17, 1000, long] {
            let mut buffer = Buffer::zeros(len).unwrap();
            assert_eq!(buffer.as_slice(), vec![T::zeroed(); len]);
            assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
            buffer.as_mut_slice().fill(one);
            let mut copy = buffer.clone();
            copy.as_mut_slice().fill(other);
            assert_eq!(buffer.as_slice(), vec![one; len]);
            assert_eq!(copy.as_slice(), vec![other; len]);
        }
    }
}
