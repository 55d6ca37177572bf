//! AVX2 and AVX-512.

use std::arch::x86_64::{
    __m256, __m256d, __m512, __m512d, _mm256_fmadd_pd, _mm256_fmadd_ps, _mm256_loadu_pd,
    _mm256_loadu_ps, _mm256_set1_pd, _mm256_set1_ps, _mm256_storeu_pd, _mm256_storeu_ps,
    _mm512_fmadd_pd, _mm512_fmadd_ps, _mm512_loadu_pd, _mm512_loadu_ps, _mm512_set1_pd,
    _mm512_set1_ps, _mm512_storeu_pd, _mm512_storeu_ps,
};

use super::lanes::Lanes;

macro_rules! vector {
    ($name:ident($register:ty), $entry:ty, $width:literal, $load:ident, $store:ident, $all:ident, $fused:ident) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name($register);

        // SAFETY of all methods: features and pointers are the caller's promise, see the trait.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Lanes for $name {
            type Entry = $entry;
            type Pair = [$entry; 2 * $width];
            const WIDTH: usize = $width;
            const ZEROS: Self::Pair = [0.0; 2 * $width];

            #[inline(always)]
            unsafe fn load(from: *const $entry) -> Self {
                unsafe { Self($load(from)) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $entry) {
                unsafe { $store(to, self.0) }
            }

            #[inline(always)]
            unsafe fn add_product(self, a: $entry, b: Self) -> Self {
                unsafe { Self($fused($all(a), b.0, self.0)) }
            }
        }
    };
}

vector!(
    Avx2Single(__m256),
    f32,
    8,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps
);
vector!(
    Avx2Double(__m256d),
    f64,
    4,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd
);
vector!(
    Avx512Single(__m512),
    f32,
    16,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps
);
vector!(
    Avx512Double(__m512d),
    f64,
    8,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_set1_pd,
    _mm512_fmadd_pd
);
