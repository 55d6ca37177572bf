//! Has a block brought to the caches ahead of its use.
//!
//! A processor guesses what is read next, but no further than to the end of a page. Blocks are about
//! as long as pages, so that while one is worked on the next would not be under way. Asking for it
//! changes no result; where a level has no way to ask, nothing happens.

#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar as neon;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{run as avx2, run as avx512};

pub(in crate::simd) fn scalar(_block: &[u8]) {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    /// Bytes of a line of the cache.
    const LINE: usize = 64;

    pub(in crate::simd) fn run(block: &[u8]) {
        for line in block.chunks(LINE) {
            // SAFETY: SSE is part of the target's baseline; a prefetch reads no memory.
            #[allow(unused_unsafe)]
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
            }
        }
    }
}
