//! Copies a block to memory that is not read soon, past the caches where the level can.
//!
//! A plain store first reads the line that it overwrites, and evicts others to keep it; a streaming
//! store does neither. It pays where source and destination are larger than the caches, which the
//! caller knows. Streaming needs a destination that begins on a cache line; others are copied as
//! usual. Other threads may read what was streamed once the thread that did it has given up its
//! [`Streaming`].

#[cfg(target_arch = "x86_64")]
mod x86;

use std::marker::PhantomData;

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

/// What a thread holds while it streams. To give it up, also in a panic, puts everything streamed
/// before what the thread does next, as other threads see it.
#[derive(Debug)]
#[must_use = "what is streamed after it is gone is in no order"]
pub struct Streaming<'k> {
    kernels: &'k Kernels,
    /// A fence orders the stores of its own thread alone: this stays there.
    stays: PhantomData<*const ()>,
}

impl Kernels {
    /// Held by a thread for as long as it streams.
    pub fn streaming(&self) -> Streaming<'_> {
        Streaming { kernels: self, stays: PhantomData }
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
                let streaming = kernels.streaming();
                kernels.stream(out, &x);
                drop(streaming);
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(out), bits(&x));
                assert!(buffer.as_slice()[..offset].iter().all(|v| *v == 0.0));
                assert!(buffer.as_slice()[offset + x.len()..].iter().all(|v| *v == 0.0));
            }
        });
    }
}
