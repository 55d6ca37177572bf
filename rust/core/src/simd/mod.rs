//! The kernels: the only unsafe code of the crate, one directory each, behind one dispatch table.
//!
//! | kernel | what it does to a block |
//! |---|---|
//! | [`adam`] | moves a second moment by a gradient, and makes a step of that |
//! | [`add`] | `out = gradient + decay * residual`, `out += scale * values` |
//! | [`cells`] | float32 to codes of an affine grid, to the nearest or randomly, and back |
//! | [`codes`] | Huffman codes of eight streams to symbols and back |
//! | [`columns`] | codes of columns that depend on one another, for many rows at a time |
//! | [`dither`] | float32 to bfloat16, randomly |
//! | [`dot`] | rows of packed codes times vectors, and the values of packed codes |
//! | [`draws`] | random positions below a number |
//! | [`exponent`] | float32 to powers of two, randomly, in 8 bits, and back |
//! | [`fetch`] | has a block brought to the caches ahead of its use |
//! | [`fields`] | codes of a few bits, from bytes to packed and back |
//! | [`float8`] | float32 to 8-bit floats, to the nearest or randomly, and back |
//! | [`gaps`] | how far floats are from others, in bits of their own number, and back |
//! | [`grid`] | float32 to levels of a grid, randomly, and back; signs to float32 |
//! | [`kth`] | the k-th largest of a short list, by bisection |
//! | [`leaders`] | the largest entry of each chunk |
//! | [`maxima`] | the largest magnitude of each column of a block |
//! | [`members`] | classes of floats as masks, and where their members are |
//! | [`narrow`] | float32 to float16 and bfloat16 |
//! | [`parts`] | floats to exponents with a part of the mantissa, and the rest, and back |
//! | [`peak`] | the largest magnitude, as bits (non-finite values show in it) |
//! | [`moments`] | sums of exceedances over a location and of their squares |
//! | [`momentum`] | moves a momentum by a gradient |
//! | [`log_sum`] | sum of logarithms of magnitudes, without a logarithm in the loop |
//! | [`product`] | products of matrices, by fused sums |
//! | [`refine`] | drops the entries of a list that are not above a bound |
//! | [`sign_bits`] | float32 to signs, a bit each, and what one of two values leaves |
//! | [`spread`] | the number of a group, for each of its entries |
//! | [`stream`] | copies past the caches |
//! | [`summary`] | sums of values of either sign and of squares, for scales |
//! | [`sweep`] | add, peak, moments and above in one loop: the hot path |
//! | [`above`] | compacts the entries whose magnitude exceeds a bound |
//! | [`bins`] | picks the entries that AdaComp sends of each bin |
//! | [`total`] | sum of the values with their signs |
//! | [`window`] | takes the magnitudes inside a window out of a list |
//! | [`widen`] | float64, bfloat16 and float16 to float32 |
//!
//! Codecs run `sweep` where they can. `above` and `moments` stand beside it as what it is judged by;
//! their parts are its own.
//!
//! A kernel is a function for each level, of the level's name: `add::scalar`, `add::neon`, `add::avx2`
//! and `add::avx512`, which need the CPU features of their level. The dispatch table puts those of
//! one level together as [`Kernels`], whose methods are safe to call: nobody has the [`Kernels`] of a
//! level that the CPU lacks.
//!
//! Every level gives the same bits: sums run over sixteen fixed lanes in float64, position `i` of a
//! block always goes to lane `i % 16`, and nothing is contracted to a fused multiply-add (`product` fuses
//! all, on every level). Most
//! kernels are one plain body that [`stamp`] compiles for each level and LLVM vectorises; only
//! `above`, `dot`, `fetch`, `fields`, parts of `members`, `narrow`, `product`, `refine`, `sign_bits`, `stream`, `sweep`, `window` and `widen`
//! from float16 are written by hand: compaction, stores past the caches and some instructions are
//! beyond a compiler. On NEON, that is so of `dot` and `sweep` alone.

// The whole crate denies unsafe code. Here it is what the module is for: calling functions whose
// instruction set was detected at run time, and the vector loads and stores of those by hand.
#![allow(unsafe_code)]

pub mod above;
pub mod adam;
pub mod add;
pub mod bins;
pub mod cells;
pub mod codes;
pub mod columns;
pub mod dither;
pub mod dot;
pub mod draws;
pub mod exponent;
pub mod fetch;
pub mod fields;
pub mod float8;
pub(crate) mod float_mode;
pub mod gaps;
pub mod grid;
pub mod kth;
pub mod leaders;
mod level;
pub mod log_sum;
pub mod maxima;
pub mod members;
pub mod moments;
pub mod momentum;
pub mod narrow;
mod normal;
pub mod parts;
pub mod peak;
pub mod product;
pub mod refine;
pub mod sign_bits;
pub mod spread;
mod stamp;
pub mod stream;
pub mod summary;
pub mod sweep;
mod table;
pub mod total;
pub mod widen;
pub mod window;

use std::ops::AddAssign;

pub use float_mode::in_standard_mode;
pub use level::{Level, available_levels};
pub(crate) use normal::normal_or_zero;
pub use table::{Kernels, at_level, level};

/// Lanes that a sum is spread over, on every level.
pub const LANES: usize = 16;

/// Elements a kernel is called with at most: two blocks fit the smallest L1 cache.
pub const BLOCK: usize = 2048;

/// Two numbers for each entry of a block.
pub type Pair<'a> = [&'a [f32]; 2];

/// What the entries of a block are multiplied by: each its own, so that entries of many groups run
/// through one loop.
#[derive(Debug, Clone, Copy)]
pub struct Scaling<'a> {
    /// To become codes.
    pub to: Pair<'a>,
    /// To come back from codes.
    pub back: &'a [f32],
}

/// What is left of a block after its whole lanes, with zeros behind it.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

/// Adds sixteen lanes in one fixed order, the same on every level.
#[inline(always)]
pub fn reduce<T: Copy + AddAssign>(lanes: &[T; LANES]) -> T {
    let mut width = LANES / 2;
    let mut sums = *lanes;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
pub(crate) mod testing {
    //! Inputs that every kernel's tests share.

    use super::{Kernels, LANES, available_levels};

    /// A deterministic tensor with zeros of both signs, ties, subnormals and both extremes.
    pub(crate) fn tensor(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        let mut next = move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        (0..len)
            .map(|_| {
                let word = next();
                let unit = (word >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
                match word % 11 {
                    0 => 0.0,
                    1 => -0.0,
                    2 => 0.25,
                    3 => -0.25,
                    4 => f32::from_bits((word >> 45) as u32 & 0xffff),
                    5 => unit * 1e30,
                    _ => unit,
                }
            })
            .collect()
    }

    /// Calls `check` for every level of this CPU and every length from 0 to 130; under Miri, which is
    /// slow, only for those around a whole number of vectors.
    pub(crate) fn levels_and_lengths(mut check: impl FnMut(&'static Kernels, Vec<f32>)) {
        for level in available_levels() {
            let kernels = Kernels::of(level).expect("listed as available");
            assert_eq!(kernels.level(), level);
            let lengths = (0..=130).chain([1000, 1024]);
            for len in lengths.filter(|len| !cfg!(miri) || matches!(len % LANES, 0 | 1 | 15)) {
                check(kernels, tensor(len, len as u64 + 1));
            }
        }
    }
}
