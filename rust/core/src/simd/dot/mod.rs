//! Rows of packed codes times vectors, and the values of packed codes.
//!
//! A code of two, four or eight bits stands for `base + step * code`, in float32, each operation rounded on
//! its own; step and base are those of its block. Codes are read where they lie, as
//! [`fields`](super::fields) packs them, sixteen at a time.
//!
//! | kernel | what it does |
//! |---|---|
//! | `decode` | codes of a row to values |
//! | `arrange` | a vector in the order in which a level takes codes from their bytes |
//! | `dot` | rows of codes, or of values, times vectors |
//! | `sums` | a row of codes times vectors of int8: an exact sum for each run of 32 or 64 entries |
//! | `round` | a vector to int8, run by run |
//! | `runs` | exact sums to the product |
//! | `part` | steps and bases, each on their own |
//!
//! A product with a vector of float32 is sixteen sums in float32: entry `i` of a row is multiplied by
//! entry `i` of the vector, rounded, and added to lane `i % 16`, ascending; [`reduce`](super::reduce) adds
//! the lanes. `dot` of codes is `decode` and `dot` of values in one, to the last bit. It adds to the lanes
//! that it is given, so that rows can be done in parts, and decodes once for several vectors.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod activations;
mod lanes;
mod run;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use activations::LONGEST as LONGEST_RUN;
pub use activations::Rounded;
pub(in crate::simd) use activations::{part, round, runs};
pub use run::{Rows, Vectors};

/// The levels' functions of one kernel, which is of that name in their modules.
macro_rules! kernel {
    ($(#[$doc:meta])* $kernel:ident) => {
        $(#[$doc])*
        pub(in crate::simd) mod $kernel {
            #[cfg(target_arch = "aarch64")]
            pub(in crate::simd) use super::aarch64::$kernel as neon;
            pub(in crate::simd) use super::scalar::$kernel as scalar;
            #[cfg(target_arch = "x86_64")]
            pub(in crate::simd) use super::x86::{avx2::$kernel as avx2, avx512::$kernel as avx512};
        }
    };
}

kernel!(
    /// Codes to values.
    decode
);
kernel!(
    /// A vector in a level's order.
    arrange
);
kernel!(
    /// Rows times vectors.
    dot
);
kernel!(
    /// A row of codes times vectors of int8.
    sums
);
