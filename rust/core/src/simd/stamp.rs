//! Stamps one plain body into a function for each level.

/// Makes the functions `scalar`, `avx2`, `avx512` and `neon`, each the body compiled for that level.
/// The body has to be `#[inline(always)]`.
macro_rules! stamp {
    (fn($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? => $body:ident) => {
        pub(in crate::simd) fn scalar($($arg: $ty),*) $(-> $ret)? {
            $body($($arg),*)
        }
        // The baseline of AArch64 has NEON: LLVM vectorises the same body with it.
        #[cfg(target_arch = "aarch64")]
        pub(in crate::simd) use scalar as neon;
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,bmi1,bmi2,f16c,lzcnt,popcnt")]
        pub(in crate::simd) fn avx2($($arg: $ty),*) $(-> $ret)? {
            $body($($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,f16c,lzcnt,popcnt"
        )]
        pub(in crate::simd) fn avx512($($arg: $ty),*) $(-> $ret)? {
            $body($($arg),*)
        }
    };
}

pub(in crate::simd) use stamp;
