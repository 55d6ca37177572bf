//! The kernels: the only unsafe code of the crate, one directory each, behind one dispatch table.
//!
//! | kernel | what it does to a block |
//! |---|---|
//! | [`add`] | `out = gradient + decay * residual`, `out += scale * values` |
//! | [`draws`] | random positions below a number |
//! | [`exponent`] | float32 to powers of two, randomly, in 8 bits, and back |
//! | [`fetch`] | has a block brought to the caches ahead of its use |
//! | [`fields`] | codes of a few bits, from bytes to packed and back |
//! | [`float8`] | float32 to 8-bit floats, to the nearest or randomly, and back |
//! | [`grid`] | float32 to levels of a grid, randomly, and back; signs to float32 |
//! | [`kth`] | the k-th largest of a short list, by bisection |
//! | [`leaders`] | the largest entry of each chunk |
//! | [`maxima`] | the largest magnitude of each column of a block |
//! | [`narrow`] | float32 to float16 and bfloat16 |
//! | [`peak`] | the largest magnitude, as bits (non-finite values show in it) |
//! | [`moments`] | sums of exceedances over a location and of their squares |
//! | [`momentum`] | moves a momentum by a gradient |
//! | [`log_sum`] | sum of logarithms of magnitudes, without a logarithm in the loop |
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
//! Every level gives the same bits: sums run over sixteen fixed lanes in float64, position `i` of a
//! block always goes to lane `i % 16`, and nothing is contracted to a fused multiply-add. Most
//! kernels are one plain body that [`stamp`] compiles for each level and LLVM vectorises; only
//! `above`, `fetch`, `fields`, `narrow`, `refine`, `sign_bits`, `stream`, `sweep`, `window` and `widen`
//! from float16 are written by hand: compaction, stores past the caches and some instructions are
//! beyond a compiler.

// The whole crate denies unsafe code. Here it is what the module is for: calling functions whose
// instruction set was detected at run time, and the vector loads and stores of those by hand.
#![allow(unsafe_code)]

pub mod above;
pub mod add;
pub mod bins;
pub mod draws;
pub mod exponent;
pub mod fetch;
pub mod fields;
pub mod float8;
pub(crate) mod float_mode;
pub mod grid;
pub mod kth;
pub mod leaders;
mod level;
pub mod log_sum;
pub mod maxima;
pub mod moments;
pub mod momentum;
pub mod narrow;
pub mod peak;
pub mod refine;
pub mod sign_bits;
pub mod spread;
mod stamp;
pub mod stream;
pub mod summary;
pub mod sweep;
pub mod total;
pub mod widen;
pub mod window;

use half::{bf16, f16};

use crate::Input;
use crate::rng::Key;

pub use float_mode::in_standard_mode;
pub use level::{Level, available_levels, level};

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

/// The type of [`above`].
pub type Above = fn(&[f32], f32, u32, &mut [u32], &mut [f32]) -> usize;

/// The type of [`window`].
pub type Window = fn(&[f32], u32, u32, &mut [u32]) -> (usize, usize);

/// The type of [`bins`].
pub type Bins = fn(&[f32], &[f32], f32, usize, &mut [u32], &mut [f32]);

/// The type of [`momentum`].
pub type Move = fn(&mut [f32], &mut [f32], &[f32], &[f32], momentum::Rule);

/// The type of [`leaders`].
pub type Leaders = fn(&[f32], usize, u32, &mut [u32], &mut [f32]) -> usize;

/// The kernels of one level.
#[derive(Debug)]
pub struct Kernels {
    /// The level these are compiled for.
    pub level: Level,
    /// See [`add`].
    pub add: fn(&mut [f32], &[f32], &[f32], f32),
    /// See [`add`].
    pub add_scaled: fn(&mut [f32], &[f32], f32),
    /// See [`peak`].
    pub peak: fn(&[f32]) -> u32,
    /// See [`peak`].
    pub group_peaks: fn(&[f32], usize, &mut [u32]),
    /// See [`moments`].
    pub moments: fn(&[f32], f32, &mut moments::Lanes),
    /// See [`momentum`].
    pub momentum: Move,
    /// See [`kth`].
    pub kth: fn(&[u32], usize, usize) -> u32,
    /// See [`leaders`].
    pub leaders: Leaders,
    /// See [`maxima`].
    pub maxima: fn(&[f32], &mut [u32]),
    /// See [`log_sum`].
    pub log_sum: fn(&[f32], &mut log_sum::Lanes),
    /// See [`above`].
    pub above: Above,
    /// See [`bins`].
    pub bins: Bins,
    /// See [`draws`].
    pub draws: fn(Key, u32, u32, &mut [u32]),
    /// See [`bins::pick`].
    pub pick: fn(&[f32], &[f32], f32, f32, &mut [f32]),
    /// See [`exponent`].
    pub exponent_encode: fn(&[f32], &[f32], Key, u32, &mut [u8]),
    /// See [`exponent`].
    pub exponent_left: fn(&mut [f32], Scaling<'_>, Key, u32, &mut [u8]),
    /// See [`exponent`].
    pub exponent_decode: fn(&[u8], &[f32], &mut [f32]),
    /// See [`float8`].
    pub float8_nearest: fn(&[f32], float8::Format, Pair<'_>, &mut [u8]),
    /// See [`float8`].
    pub float8_nearest_left: fn(&mut [f32], float8::Format, Scaling<'_>, &mut [u8]),
    /// See [`float8`].
    pub float8_stochastic: float8::Stochastic,
    /// See [`float8`].
    pub float8_stochastic_left: float8::StochasticLeft,
    /// See [`float8`].
    pub float8_decode: fn(&[u8], float8::Format, &[f32], &mut [f32]),
    /// See [`fields`].
    pub pack: fn(&[u8], u32, &mut [u8]),
    /// See [`fields`].
    pub unpack: fn(&[u8], u32, &mut [u8]),
    /// See [`grid`].
    pub to_levels: fn(&[f32], grid::Grid, Pair<'_>, Key, u32, &mut [u8]),
    /// See [`grid`].
    pub to_levels_left: fn(&mut [f32], grid::Grid, Scaling<'_>, Key, u32, &mut [u8]),
    /// See [`grid`].
    pub from_levels: fn(&[u8], grid::Grid, &[f32], &mut [f32]),
    /// See [`grid`].
    pub one_of_two: fn(&[u8], Pair<'_>, &mut [f32]),
    /// See [`grid`].
    pub subtract: fn(&mut [f32], &[f32]),
    /// See [`summary`].
    pub summary: fn(&[f32], &mut summary::Lanes),
    /// See [`summary`].
    pub sides: fn(&[f32], &mut summary::Lanes),
    /// See [`summary`].
    pub squares: fn(&[f32], &mut summary::Lanes),
    /// See [`summary`].
    pub group_summaries: fn(&[f32], usize, &mut [summary::Summary]),
    /// See [`summary`].
    pub group_sides: fn(&[f32], usize, &mut [summary::Summary]),
    /// See [`summary`].
    pub group_squares: fn(&[f32], usize, &mut [summary::Summary]),
    /// See [`narrow`].
    pub narrow_f16: fn(&[f32], f32, &mut [[u8; 2]]),
    /// See [`narrow`].
    pub narrow_bf16: fn(&[f32], &mut [[u8; 2]]),
    /// See [`narrow`].
    pub narrow_bf16_left: fn(&mut [f32], &mut [[u8; 2]]),
    /// See [`refine`].
    pub refine: fn(&mut [u32], &mut [f32], f32) -> usize,
    /// See [`stream`].
    pub stream: fn(&mut [f32], &[f32]),
    /// See [`stream`].
    pub fence: fn(),
    /// See [`fetch`].
    pub fetch: fn(&[f32]),
    /// See [`sign_bits`].
    pub sign_bits: fn(&[f32], &mut [u8]),
    /// See [`sign_bits`].
    pub sign_bits_left: fn(&mut [f32], Pair<'_>, &mut [u8]),
    /// See [`spread`].
    pub spread: fn(&[f32], usize, usize, &mut [f32]),
    /// See [`sweep`].
    pub sweep: fn(Input<'_>, Option<sweep::Feedback<'_>>, sweep::Gather<'_>) -> sweep::Found,
    /// See [`total`].
    pub total: fn(&[f32], &mut total::Lanes),
    /// See [`widen`].
    pub widen_f64: fn(&[f64], &mut [f32]),
    /// See [`widen`].
    pub widen_f16: fn(&[f16], &mut [f32]),
    /// See [`widen::from_f16`].
    pub decode_f16: fn(&[[u8; 2]], f32, &mut [f32]),
    /// See [`widen`].
    pub widen_bf16: fn(&[bf16], &mut [f32]),
    /// See [`window`].
    pub window: Window,
}

macro_rules! table {
    ($level:expr, $module:ident) => {
        Kernels {
            level: $level,
            add: add::$module::run,
            add_scaled: add::scaled::$module::run,
            peak: peak::$module::run,
            group_peaks: peak::groups::$module::run,
            moments: moments::$module::run,
            momentum: momentum::$module::run,
            kth: kth::$module::run,
            leaders: leaders::$module::run,
            maxima: maxima::$module::run,
            log_sum: log_sum::$module::run,
            above: above::$module::run,
            bins: bins::$module::run,
            draws: draws::$module::run,
            pick: bins::pick::$module::run,
            exponent_encode: exponent::encode::$module::run,
            exponent_left: exponent::encode::left::$module::run,
            exponent_decode: exponent::decode::$module::run,
            float8_nearest: float8::nearest::$module::run,
            float8_nearest_left: float8::nearest::left::$module::run,
            float8_stochastic: float8::stochastic::$module::run,
            float8_stochastic_left: float8::stochastic::left::$module::run,
            float8_decode: float8::decode::$module::run,
            pack: fields::$module::pack,
            unpack: fields::$module::unpack,
            to_levels: grid::to_levels::$module::run,
            to_levels_left: grid::to_levels_left::$module::run,
            from_levels: grid::from_levels::$module::run,
            one_of_two: grid::one_of_two::$module::run,
            subtract: grid::subtract::$module::run,
            summary: summary::$module::run,
            sides: summary::sides::$module::run,
            squares: summary::squares::$module::run,
            group_summaries: summary::groups::$module::run,
            group_sides: summary::group_sides::$module::run,
            group_squares: summary::group_squares::$module::run,
            narrow_f16: narrow::$module::run,
            narrow_bf16: narrow::to_bf16::$module::run,
            narrow_bf16_left: narrow::to_bf16::left::$module::run,
            refine: refine::$module::run,
            stream: stream::$module::run,
            fence: stream::$module::fence,
            fetch: fetch::$module::run,
            sign_bits: sign_bits::$module::run,
            sign_bits_left: sign_bits::$module::left,
            spread: spread::$module::run,
            sweep: sweep::$module::run,
            total: total::$module::run,
            widen_f64: widen::from_f64::$module::run,
            widen_f16: widen::from_f16::$module::run,
            decode_f16: widen::from_f16::$module::decode,
            widen_bf16: widen::from_bf16::$module::run,
            window: window::$module::run,
        }
    };
}

static SCALAR: Kernels = table!(Level::Scalar, scalar);
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = table!(Level::Avx2, avx2);
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = table!(Level::Avx512, avx512);
#[cfg(target_arch = "aarch64")]
static NEON: Kernels = table!(Level::Neon, neon);

impl Kernels {
    /// The kernels of a level, if this CPU can run them.
    pub fn of(level: Level) -> Option<&'static Self> {
        if !level.is_available() {
            return None;
        }
        match level {
            Level::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Some(&AVX2),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Some(&AVX512),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => Some(&NEON),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }

    /// The kernels in use: those of [`level()`].
    pub fn current() -> &'static Self {
        Self::of(level()).unwrap_or(&SCALAR)
    }
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
pub fn reduce(lanes: &[f64; LANES]) -> f64 {
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

    use super::{Kernels, available_levels};

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

    /// Calls `check` for every level of this CPU and every length from 0 to 130.
    pub(crate) fn levels_and_lengths(mut check: impl FnMut(&'static Kernels, Vec<f32>)) {
        for level in available_levels() {
            let kernels = Kernels::of(level).expect("listed as available");
            assert_eq!(kernels.level, level);
            for len in (0..=130).chain([1000, 1024]) {
                check(kernels, tensor(len, len as u64 + 1));
            }
        }
    }
}
