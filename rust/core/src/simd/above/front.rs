//! Where candidates are written by whole vectors.

use super::SLACK;

/// The place for the next candidates in the two outputs of a block.
///
/// A vector is stored whole and counted by its hits. Its sixteen lanes at most fit behind the hits of
/// the elements before it, of which there are no more than these elements: that is what
/// [`SLACK`] is for.
pub(in crate::simd) struct Front {
    indices: *mut u32,
    values: *mut f32,
    /// An offset that is right for both, without a multiplication for either.
    bytes: usize,
}

impl Front {
    /// The beginning of outputs, which hold as many elements as the block and the slack.
    #[inline(always)]
    pub(in crate::simd) fn of(len: usize, indices: &mut [u32], values: &mut [f32]) -> Self {
        let capacity = len + SLACK;
        assert!(
            indices.len() >= capacity && values.len() >= capacity,
            "outputs of above hold the input and the slack"
        );
        Self { indices: indices.as_mut_ptr(), values: values.as_mut_ptr(), bytes: 0 }
    }

    /// Candidates so far.
    #[inline(always)]
    pub(in crate::simd) fn count(&self) -> usize {
        self.bytes / size_of::<u32>()
    }

    /// Room for a vector of positions and one of values.
    ///
    /// # Safety
    ///
    /// The outputs live, and the vector's elements are of the block, behind those of all stores so far.
    #[inline(always)]
    pub(in crate::simd) unsafe fn ends(&self) -> (*mut u32, *mut f32) {
        // SAFETY: by the promise, no more than the elements before the vector have been counted.
        unsafe { (self.indices.byte_add(self.bytes), self.values.byte_add(self.bytes)) }
    }

    /// Counts the hits of the vector that was stored, by the bytes that they take in either output.
    #[inline(always)]
    pub(in crate::simd) fn advance(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}
