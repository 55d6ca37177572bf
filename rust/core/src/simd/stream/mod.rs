//! Copies a block to memory that is not read soon, past the caches where the level can.
//!
//! A plain store first reads the line that it overwrites, and evicts others to keep it; a streaming
//! store does neither. It pays where source and destination are larger than the caches, which the
//! caller knows. What is before the first cache line of the destination, and behind the last, is copied
//! as usual. Other threads may read what was streamed once the [`Streaming`] of the thread that did it
//! has ended.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::marker::PhantomData;
use std::ops::Deref;

use super::Kernels;

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar as neon;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{avx2, avx512};

pub(in crate::simd) fn scalar(out: &mut [f32], x: &[f32]) {
    out.copy_from_slice(x);
}

/// Puts what was streamed before what follows.
pub(in crate::simd) mod fence {
    #[cfg(target_arch = "x86_64")]
    pub(in crate::simd) use super::x86::{fence as avx2, fence as avx512};
    #[cfg(target_arch = "aarch64")]
    pub(in crate::simd) use scalar as neon;

    pub(in crate::simd) fn scalar() {}
}

/// The kernels of a thread that may stream: to have one is the proof that [`Kernels::streaming`] puts
/// everything streamed before what the thread does after that, as other threads see it.
#[derive(Debug)]
pub struct Streaming<'k> {
    kernels: &'k Kernels,
    /// A fence orders the stores of its own thread alone: this stays there.
    stays: PhantomData<*const ()>,
}

impl Kernels {
    /// Does work that may stream, in this thread.
    pub fn streaming<R>(&self, work: impl FnOnce(&Streaming<'_>) -> R) -> R {
        // Not given out by value: what is forgotten ends with no fence.
        work(&Streaming { kernels: self, stays: PhantomData })
    }
}

impl Streaming<'_> {
    /// Copies past the caches.
    #[inline]
    pub fn stream(&self, out: &mut [f32], x: &[f32]) {
        self.kernels.stream(out, x);
    }
}

impl Deref for Streaming<'_> {
    type Target = Kernels;

    #[inline]
    fn deref(&self) -> &Kernels {
        self.kernels
    }
}

impl Drop for Streaming<'_> {
    fn drop(&mut self) {
        self.kernels.fence();
    }
}

#[cfg(test)]
mod tests {
    use crate::buffer::Buffer;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn copies_to_any_alignment() {
        levels_and_lengths(|kernels, x| {
            for offset in [0, 1, 3, 16] {
                let mut buffer = Buffer::zeros(x.len() + offset + 5).unwrap();
                let out = &mut buffer.as_mut_slice()[offset..offset + x.len()];
                kernels.streaming(|kernels| kernels.stream(out, &x));
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(out), bits(&x));
                assert!(buffer.as_slice()[..offset].iter().all(|v| *v == 0.0));
                assert!(buffer.as_slice()[offset + x.len()..].iter().all(|v| *v == 0.0));
            }
        });
    }
}
