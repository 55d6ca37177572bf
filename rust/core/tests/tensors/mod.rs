//! Tensors for tests, benches and examples: the same in every run.

#![allow(dead_code, reason = "each program that includes this uses a part of it")]

/// A random word for each position of each tensor (`SplitMix64`).
fn hash(i: u64, seed: u64) -> u64 {
    let mut x = (i ^ seed << 40).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A number strictly between 0 and 1, from the upper bits of a word.
fn uniform(word: u64) -> f32 {
    ((word >> 40) as f32 + 0.5) / (1 << 24) as f32
}

/// Bell-shaped values: products of two uniform numbers in -1..1.
pub fn bell(len: usize, seed: u64) -> Vec<f32> {
    let side = |word: u64| 2.0 * uniform(word) - 1.0;
    let words = (0..len as u64).map(|i| hash(i, seed));
    words.map(|word| side(word) * side(word << 24)).collect()
}

/// Laplace magnitudes with random signs.
pub fn laplace(len: usize, seed: u64) -> Vec<f32> {
    let words = (0..len as u64).map(|i| hash(i, seed));
    let value = |word: u64| libm::logf(uniform(word)) * if word & 1 == 0 { 1.0 } else { -1.0 };
    words.map(value).collect()
}
