//! Float32 memory aligned to a cache line.

use bytemuck::{Pod, Zeroable};

/// One cache line.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A fixed-size float32 buffer that begins on a cache line.
#[derive(Clone)]
pub(crate) struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// A buffer of zeros. Pages are not touched before they are written.
    pub fn zeros(len: usize) -> Self {
        Self { lines: bytemuck::zeroed_vec(len.div_ceil(16)), len }
    }

    /// The elements.
    pub fn as_slice(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
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
        for len in [0, 1, 15, 16, 17, 1000] {
            let mut buffer = Buffer::zeros(len);
            assert_eq!(buffer.as_slice(), vec![0.0; len]);
            assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
            buffer.as_mut_slice().fill(1.0);
            assert_eq!(buffer.as_slice(), vec![1.0; len]);
        }
    }
}
