//! Stamps one plain body into a function for each level.

/// Makes the modules `scalar`, `avx2`, `avx512` and `neon`, each with a function `run` that is the
/// body compiled for that level. The body has to be `#[inline(always)]`.
macro_rules! stamp {
    (fn($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? => $body:ident) => {
        pub(in crate::simd) mod scalar {
            #[allow(unused_imports)]
            use super::*;
            pub(in crate::simd) fn run($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
        }
        // The baseline of AArch64 has NEON: LLVM vectorises the same body with it.
        #[cfg(target_arch = "aarch64")]
        pub(in crate::simd) use scalar as neon;
        $crate::simd::stamp::stamp_x86!(
            avx2, "avx2,bmi1,bmi2,f16c,lzcnt,popcnt",
            fn($($arg: $ty),*) $(-> $ret)? => $body
        );
        $crate::simd::stamp::stamp_x86!(
            avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,f16c,lzcnt,popcnt",
            fn($($arg: $ty),*) $(-> $ret)? => $body
        );
    };
}

/// One level of x86-64 for [`stamp`].
macro_rules! stamp_x86 {
    ($level:ident, $features:literal, fn($($arg:ident: $ty:ty),*) $(-> $ret:ty)? => $body:ident) => {
        #[cfg(target_arch = "x86_64")]
        pub(in crate::simd) mod $level {
            #[allow(unused_imports)]
            use super::*;
            pub(in crate::simd) fn run($($arg: $ty),*) $(-> $ret)? {
                #[target_feature(enable = $features)]
                fn inner($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                // SAFETY: `run` is reached through the dispatch table alone, which hands out a
                // level only where `Level::is_available` has found its features on this CPU.
                unsafe { inner($($arg),*) }
            }
        }
    };
}

pub(in crate::simd) use {stamp, stamp_x86};
