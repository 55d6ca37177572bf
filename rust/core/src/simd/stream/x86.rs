//! Non-temporal stores of whole vectors; what is before the first cache line, or left at the end, is copied.

/// The alignment that every vector store is content with: a cache line.
const LINE: usize = 64;

/// Copies what is before the first cache line of `out`; what is left to stream.
fn from_line<'o, 'x>(out: &'o mut [f32], x: &'x [f32]) -> (&'o mut [f32], &'x [f32]) {
    assert_eq!(out.len(), x.len(), "stream copies a block to one of its length");
    let before = out.as_ptr().align_offset(LINE).min(out.len());
    let ((head, out), (front, x)) = (out.split_at_mut(before), x.split_at(before));
    head.copy_from_slice(front);
    (out, x)
}

pub(in crate::simd) fn fence() {
    // SAFETY: SSE, to which this belongs, is part of the target's baseline.
    #[allow(unused_unsafe)]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

macro_rules! streaming {
    ($level:ident, $features:literal, $lanes:literal, $load:ident, $store:ident) => {
        #[target_feature(enable = $features)]
        pub(in crate::simd) fn $level(out: &mut [f32], x: &[f32]) {
            use std::arch::x86_64::{$load, $store};

            let (out, x) = from_line(out, x);
            let (whole, rest) = x.as_chunks::<$lanes>();
            let (targets, end) = out.as_chunks_mut::<$lanes>();
            for (target, block) in targets.iter_mut().zip(whole) {
                // SAFETY: both hold a vector. The first target begins on a cache line, and so every
                // other is aligned to its own size.
                unsafe { $store(target.as_mut_ptr(), $load(block.as_ptr())) };
            }
            end.copy_from_slice(rest);
        }
    };
}

streaming!(avx2, "avx2", 8, _mm256_loadu_ps, _mm256_stream_ps);
streaming!(avx512, "avx512f", 16, _mm512_loadu_ps, _mm512_stream_ps);
