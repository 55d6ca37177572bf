//! float32 to randomly rounded powers of two, as a sign and an exponent of seven bits, and back.
//!
//! Horváth, Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed Deep
//! Learning", MSML 2022, definition 1: a magnitude between two powers of two becomes one of them, so
//! that the mean is the magnitude. Only the exponent is left of a float32, and rounding is one
//! addition: 23 random bits carry out of the mantissa with just the probability that is wanted.
//!
//! Code 0 is zero, and code `c` the power of two `2^(c - 127)` times a scale. Magnitudes below the
//! smallest power are randomly rounded to it or to zero. The same addition does this, because the bits
//! of a subnormal float32 are steps of 2^-23 between zero and the smallest normal.

pub(in crate::simd) mod decode;
pub(in crate::simd) mod encode;

#[cfg(test)]
mod tests;
