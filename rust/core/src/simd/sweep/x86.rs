//! AVX2 and AVX-512: sixteen float32 in two registers, or in one.

use super::element::Element;
use super::groups::choose;
use super::run::{level, run_with};
use super::vector::GROUP;
use super::{Addend, Found, Gather};
use crate::Input;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

mod avx2_vector;
mod avx512_vector;

/// Asks for the lines of so many elements.
#[inline(always)]
fn fetch<T>(from: *const T, len: usize) {
    for line in (0..len * size_of::<T>()).step_by(64) {
        // SAFETY: SSE is part of the target's baseline; a prefetch reads no memory.
        #[allow(unused_unsafe)]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(line));
        }
    }
}

level!(avx2, "avx2,bmi1,bmi2,f16c,lzcnt,popcnt", avx2_vector::Avx2);
level!(avx512, "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt", avx512_vector::Avx512);
