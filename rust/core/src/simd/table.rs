//! The dispatch table: which function runs a kernel on each level.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

use half::{bf16, f16};

use super::level::{Level, preferred};
use super::{
    LANES, Pair, Scaling, above, adam, add, bins, cells, codes, columns, dither, dot, draws,
    exponent, fetch, fields, float8, gaps, grid, kth,
};
use super::{
    leaders, log_sum, maxima, members, moments, momentum, narrow, parts, peak, product, refine,
    sign_bits, spread, stream,
};
use super::{summary, sweep, total, widen, window};
use crate::Input;
use crate::rng::Key;

/// Makes [`Kernels`] of a list of kernels: for each a field that holds its function, a method that
/// calls it, and an entry in the table of every level.
macro_rules! kernels {
    ($($(#[$doc:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?
            = $($path:ident)::+;)*) => {
        /// The kernels of one level.
        ///
        /// To have one is the proof that this CPU runs its level: fields are private to this module,
        /// which makes one table for each level, and [`Kernels::of`] alone hands them out, where the
        /// level is available. Its methods are therefore safe to call.
        pub struct Kernels {
            level: Level,
            $($name: unsafe fn($($ty),*) $(-> $ret)?,)*
        }

        impl Kernels {
            $($(#[$doc])*
            #[inline]
            $vis fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the functions of a table need the CPU features of its level, and nothing
                // else. `of` has found them on this CPU before it handed out these kernels.
                unsafe { (self.$name)($($arg),*) }
            })*
        }

        macro_rules! table {
            ($level:ident, $function:ident) => {
                Kernels { level: Level::$level, $($name: $($path::)+$function,)* }
            };
        }
    };
}

kernels! {
    /// `out = gradient + decay * residual`: see [`add`].
    pub fn add(out: &mut [f32], gradient: &[f32], residual: &[f32], decay: f32) = add;
    /// `out += scale * values`: see [`add`].
    pub fn add_scaled(out: &mut [f32], values: &[f32], scale: f32) = add::scaled;
    /// The next second moment, and the step: see [`adam`].
    pub fn adam(next: &mut [f32], step: &mut [f32], gradient: &[f32], second: &[f32], rule: adam::Rule) = adam;
    /// The bits of the largest magnitude: see [`peak`].
    pub fn peak(x: &[f32]) -> u32 = peak;
    /// The same of each group of `len` entries: see [`peak`].
    pub fn group_peaks(x: &[f32], len: usize, peaks: &mut [u32]) = peak::groups;
    /// Codes of columns, each rounded with what is left of those before it: see [`columns`].
    pub fn round_in_turn(turns: columns::Turns<'_>, targets: &mut [columns::Lane], left: &mut [columns::Lane], codes: &mut [columns::Lane]) = columns::turns;
    /// Codes of columns that descend: see [`columns`].
    pub fn descend(descent: columns::Descent<'_>, slopes: &mut [columns::Lane], codes: &mut [columns::Lane], changes: &mut [columns::Lane]) -> bool = columns::descent;
    /// `out += a * b` of matrices, one chain of fused sums an entry: see [`product`].
    pub fn add_product(out: product::MatrixMut<'_>, a: product::Matrix<'_>, b: product::Matrix<'_>, shape: product::Shape) = product::single;
    /// The same in float64: see [`product`].
    pub fn add_product_f64(out: product::MatrixMut<'_, f64>, a: product::Matrix<'_, f64>, b: product::Matrix<'_, f64>, shape: product::Shape) = product::double;
    /// Sums of exceedances over a location and of their squares: see [`moments`].
    pub fn moments(x: &[f32], location: f32, lanes: &mut moments::Lanes) = moments;
    /// The next momentum, and what it adds to the velocity: see [`momentum`].
    pub fn momentum(next: &mut [f32], update: &mut [f32], gradient: &[f32], momentum: &[f32], rule: momentum::Rule) = momentum;
    /// The k-th largest of a short list: see [`kth`].
    pub fn kth(bits: &[u32], k: usize, slack: usize) -> u32 = kth;
    /// The largest entry of each chunk: see [`leaders`].
    pub fn leaders(x: &[f32], chunk: usize, base: u32, indices: &mut [u32], values: &mut [f32]) -> usize = leaders;
    /// The largest magnitude of each column: see [`maxima`].
    pub fn maxima(x: &[f32], out: &mut [u32]) = maxima;
    /// The sum of the logarithms of magnitudes: see [`log_sum`].
    pub fn log_sum(x: &[f32], lanes: &mut log_sum::Lanes) = log_sum;
    /// Compacts the entries above a bound, and says how many they are: see [`above`].
    pub fn above(x: &[f32], bound: f32, base: u32, indices: &mut [u32], values: &mut [f32]) -> usize = above;
    /// Picks what AdaComp sends of each bin: see [`bins`].
    pub fn bins(gradient: &[f32], sums: &[f32], ahead: f32, bin: usize, peaks: &mut [u32], picked: &mut [f32]) = bins;
    /// Picks what AdaComp sends of one bin: see [`bins::pick`].
    pub fn pick(gradient: &[f32], sums: &[f32], ahead: f32, least: f32, picked: &mut [f32]) = bins::pick;
    /// Values to the nearest codes of an affine grid: see [`cells`].
    pub fn to_cells(x: &[f32], cells: cells::Cells, grids: Pair<'_>, codes: &mut [u8]) = cells::to_cells;
    /// The same, randomly: see [`cells`].
    pub fn to_random_cells(x: &[f32], cells: cells::Cells, grids: Pair<'_>, key: Key, first: u32, codes: &mut [u8]) = cells::to_random_cells;
    /// Codes of an affine grid back to values: see [`cells`].
    pub fn from_cells(codes: &[u8], grids: Pair<'_>, out: &mut [f32]) = cells::from_cells;
    /// Adds up the squared errors of the nearest codes on many grids: see [`cells`].
    pub fn cell_errors(x: &[f32], cells: cells::Cells, grids: &[cells::Grid; cells::GRIDS], errors: &mut [f64; cells::GRIDS]) = cells::errors;
    /// Ranges to grids of equal cells: see [`cells`].
    pub fn cut_ranges(ends: &[[f32; 2]], shares: &[f32], most: f32, out: &mut [cells::Grid]) = cells::cut;
    /// Ranges to grids with codes at their ends: see [`cells`].
    pub fn cover_ranges(ends: &[[f32; 2]], most: f32, out: &mut [cells::Grid]) = cells::cover;
    /// The least and the largest value of each group: see [`cells`].
    pub fn group_extremes(x: &[f32], len: usize, out: &mut [[f32; 2]]) = cells::extremes;
    /// Symbols of codes in eight streams: see [`codes`].
    pub fn read_codes(slots: &codes::Slots, bytes: &[u8], short: bool, at: &mut [usize; codes::STREAMS], out: &mut [u16]) = codes::read;
    /// Codes of symbols in eight streams: see [`codes`].
    pub fn write_codes(table: &codes::Codes, symbols: &[u16], room: usize, ends: &mut [codes::End; codes::STREAMS], out: &mut [u8]) = codes::write;
    /// Codes of a row to values, from `skip` entries behind the first block's beginning on: see [`dot`].
    pub fn decode_codes(row: dot::Rows<'_>, skip: usize, out: &mut [f32]) = dot::decode;
    /// A vector in the order in which codes of a width are taken: see [`dot`].
    pub fn arrange(x: &[f32], width: u32, out: &mut [f32]) = dot::arrange;
    /// Adds rows times vectors to the lanes of each pair: see [`dot`].
    pub fn dot(rows: dot::Rows<'_>, vectors: dot::Vectors<'_>, lanes: &mut [[f32; LANES]]) = dot::dot;
    /// Exact sums of runs of codes times int8: see [`dot`].
    pub fn dot_sums(codes: &[u8], width: u32, x: dot::Rounded<'_>, run: usize, sums: &mut [i32]) = dot::sums;
    /// A vector to int8: see [`dot`].
    pub fn round_runs(x: &[f32], block: usize, run: usize, out: &mut [i8], scales: [&mut [f32]; 2]) -> bool = dot::round;
    /// Adds exact sums times their scales to the lanes of a product: see [`dot`].
    pub fn dot_runs(sums: &[i32], row: Pair<'_>, x: Pair<'_>, lanes: &mut [f32; LANES]) = dot::runs;
    /// Steps and bases of scales: see [`dot`].
    pub fn part_scales(scales: &[[f32; 2]], steps: &mut [f32], bases: &mut [f32]) = dot::part;
    /// Random positions below a number: see [`draws`].
    pub fn draws(key: Key, at: u32, numel: u32, out: &mut [u32]) = draws;
    /// Values to powers of two, randomly: see [`exponent`].
    pub fn exponent_encode(values: &[f32], factors: &[f32], key: Key, first: u32, codes: &mut [u8]) = exponent::encode;
    /// The same, and what is left of each value: see [`exponent`].
    pub fn exponent_left(values: &mut [f32], scaling: Scaling<'_>, key: Key, first: u32, codes: &mut [u8]) = exponent::encode::left;
    /// Powers of two back to values: see [`exponent`].
    pub fn exponent_decode(codes: &[u8], scales: &[f32], out: &mut [f32]) = exponent::decode;
    /// Values to the nearest 8-bit floats: see [`float8`].
    pub fn float8_nearest(values: &[f32], format: float8::Format, factors: Pair<'_>, codes: &mut [u8]) = float8::nearest;
    /// The same, and what is left of each value: see [`float8`].
    pub fn float8_nearest_left(values: &mut [f32], format: float8::Format, scaling: Scaling<'_>, codes: &mut [u8]) = float8::nearest::left;
    /// Values to 8-bit floats, randomly: see [`float8`].
    pub fn float8_stochastic(values: &[f32], format: float8::Format, factors: Pair<'_>, key: Key, first: u32, codes: &mut [u8]) = float8::stochastic;
    /// The same, and what is left of each value: see [`float8`].
    pub fn float8_stochastic_left(values: &mut [f32], format: float8::Format, scaling: Scaling<'_>, key: Key, first: u32, codes: &mut [u8]) = float8::stochastic::left;
    /// 8-bit floats back to values: see [`float8`].
    pub fn float8_decode(codes: &[u8], format: float8::Format, scales: &[f32], out: &mut [f32]) = float8::decode;
    /// Codes of so many bits from bytes to packed: see [`fields`].
    pub fn pack(codes: &[u8], width: u32, out: &mut [u8]) = fields::pack;
    /// Codes of so many bits from packed to bytes: see [`fields`].
    pub fn unpack(bytes: &[u8], width: u32, out: &mut [u8]) = fields::unpack;
    /// Distances of floats of 16 bits: see [`gaps`].
    pub fn half_gaps(values: &[[u8; 2]], base: &[[u8; 2]], codes: &mut [u16], fields: &mut [u32]) = gaps::find::half;
    /// The same of 32 bits: see [`gaps`].
    pub fn single_gaps(values: &[[u8; 4]], base: &[[u8; 4]], codes: &mut [u16], fields: &mut [u32]) = gaps::find::single;
    /// Eight bits of each float of 16 bits: see [`members`].
    pub fn half_keys(values: &[[u8; 2]], from: u32, mask: u8, out: &mut [u8]) = members::keys::half;
    /// The same of 32 bits: see [`members`].
    pub fn single_keys(values: &[[u8; 4]], from: u32, mask: u8, out: &mut [u8]) = members::keys::single;
    /// Which floats of 16 bits differ from others: see [`members`].
    pub fn half_changed(values: &[[u8; 2]], base: &[[u8; 2]], out: &mut [u8]) = members::changed::half;
    /// The same of 32 bits: see [`members`].
    pub fn single_changed(values: &[[u8; 4]], base: &[[u8; 4]], out: &mut [u8]) = members::changed::single;
    /// Masks of the bytes in a range: see [`members`].
    pub fn masks(bytes: &[u8], first: u8, last: u8, out: &mut [u64]) = members::masks;
    /// The positions of marks: see [`members`].
    pub fn places(marks: &[u64], out: &mut [u32]) -> usize = members::places;
    /// The numbers of floats in their classes: see [`members`].
    pub fn rank(members: &[members::Masks], seen: &mut [u32], keys: &[u8; super::BLOCK], classes: &[u8; 256], places: &[u32], numbers: &mut [u32]) = members::rank;
    /// Marks members by their numbers: see [`members`].
    pub fn mark(members: &[u64], bits: &[u64], seen: &mut u32, marks: &mut [u64]) = members::mark;
    /// Fields of distances: see [`gaps`].
    pub fn put_fields(codes: &[u16], fields: &[u32], out: &mut [u8]) = gaps::put;
    /// Floats of 16 bits, moved by such distances: see [`gaps`].
    pub fn half_close(codes: &[u16], bytes: &[u8], at: usize, back: bool, out: &mut [[u8; 2]]) -> (usize, bool) = gaps::close::half;
    /// The same of 32 bits: see [`gaps`].
    pub fn single_close(codes: &[u16], bytes: &[u8], at: usize, back: bool, out: &mut [[u8; 4]]) -> (usize, bool) = gaps::close::single;
    /// Values to levels of a grid, randomly: see [`grid`].
    pub fn to_levels(x: &[f32], grid: grid::Grid, factors: Pair<'_>, key: Key, first: u32, codes: &mut [u8]) = grid::to_levels;
    /// The same, and what is left of each value: see [`grid`].
    pub fn to_levels_left(x: &mut [f32], grid: grid::Grid, scaling: Scaling<'_>, key: Key, first: u32, codes: &mut [u8]) = grid::to_levels_left;
    /// Levels of a grid back to values: see [`grid`].
    pub fn from_levels(codes: &[u8], grid: grid::Grid, scales: &[f32], out: &mut [f32]) = grid::from_levels;
    /// The first of an entry's pair for a code of zero, the second for one: see [`grid`].
    pub fn one_of_two(codes: &[u8], pairs: Pair<'_>, out: &mut [f32]) = grid::one_of_two;
    /// `x -= sent`: see [`grid`].
    pub fn subtract(x: &mut [f32], sent: &[f32]) = grid::subtract;
    /// Sums of either side and of squares: see [`summary`].
    pub fn summary(x: &[f32], lanes: &mut summary::Lanes) = summary;
    /// The same without squares: see [`summary`].
    pub fn sides(x: &[f32], lanes: &mut summary::Lanes) = summary::sides;
    /// Sums of squares: see [`summary`].
    pub fn squares(x: &[f32], lanes: &mut summary::Lanes) = summary::squares;
    /// The summary of each group of `len` entries: see [`summary`].
    pub fn group_summaries(x: &[f32], len: usize, out: &mut [summary::Summary]) = summary::groups;
    /// The same without squares: see [`summary`].
    pub fn group_sides(x: &[f32], len: usize, out: &mut [summary::Summary]) = summary::group_sides;
    /// The same of squares: see [`summary`].
    pub fn group_squares(x: &[f32], len: usize, out: &mut [summary::Summary]) = summary::group_squares;
    /// Values to bfloat16, randomly: see [`dither`].
    pub fn dither(values: &[f32], key: Key, first: u32, out: &mut [bf16]) = dither;
    /// Values times a factor to float16: see [`narrow`].
    pub fn narrow_f16(values: &[f32], factor: f32, codes: &mut [[u8; 2]]) = narrow;
    /// Values to bfloat16: see [`narrow`].
    pub fn narrow_bf16(values: &[f32], codes: &mut [[u8; 2]]) = narrow::to_bf16;
    /// The same, and what is left of each value: see [`narrow`].
    pub fn narrow_bf16_left(values: &mut [f32], codes: &mut [[u8; 2]]) = narrow::to_bf16::left;
    /// Exponents and the mantissa's highest bits, of floats of 16 bits: see [`parts`].
    pub fn half_symbols(values: &[[u8; 2]], cut: parts::Cut, out: &mut [u16]) = parts::symbols::half;
    /// The same of 32 bits: see [`parts`].
    pub fn single_symbols(values: &[[u8; 4]], cut: parts::Cut, out: &mut [u16]) = parts::symbols::single;
    /// Eight bits of what is left, of floats of 16 bits: see [`parts`].
    pub fn half_rests(values: &[[u8; 2]], cut: parts::Cut, from: u32, out: &mut [u8]) = parts::rests::half;
    /// The same of 32 bits: see [`parts`].
    pub fn single_rests(values: &[[u8; 4]], cut: parts::Cut, from: u32, out: &mut [u8]) = parts::rests::single;
    /// Floats of 16 bits of their parts: see [`parts`].
    pub fn half_join(symbols: &[u16], planes: &[&[u8]], cut: parts::Cut, out: &mut [[u8; 2]]) = parts::join::half;
    /// The same of 32 bits: see [`parts`].
    pub fn single_join(symbols: &[u16], planes: &[&[u8]], cut: parts::Cut, out: &mut [[u8; 4]]) = parts::join::single;
    /// Drops the entries of a list that are not above a bound: see [`refine`].
    pub fn refine(indices: &mut [u32], values: &mut [f32], bound: f32) -> usize = refine;
    /// Copies past the caches: what [`Streaming`](stream::Streaming) offers.
    pub(super) fn stream(out: &mut [f32], x: &[f32]) = stream;
    /// Orders what was streamed before what follows: what [`Streaming`](stream::Streaming) ends with.
    pub(super) fn fence() = stream::fence;
    /// Has a block brought to the caches: see [`fetch`].
    pub fn fetch(block: &[u8]) = fetch;
    /// Values to signs, a bit each: see [`sign_bits`].
    pub fn sign_bits(x: &[f32], bytes: &mut [u8]) = sign_bits;
    /// The same, and what one of two values leaves: see [`sign_bits`].
    pub fn sign_bits_left(x: &mut [f32], pairs: Pair<'_>, bytes: &mut [u8]) = sign_bits::left;
    /// The number of a group for each of its entries: see [`spread`].
    pub fn spread(numbers: &[f32], len: usize, skip: usize, out: &mut [f32]) = spread;
    /// Adds the residual and gathers peak, moments and candidates: see [`sweep`].
    pub fn sweep(x: Input<'_>, memory: sweep::Addend<'_>, gather: sweep::Gather<'_>) -> sweep::Found = sweep;
    /// The sum of the values: see [`total`].
    pub fn total(x: &[f32], lanes: &mut total::Lanes) = total;
    /// Float64 to float32: see [`widen`].
    pub fn widen_f64(x: &[f64], out: &mut [f32]) = widen::from_f64;
    /// Float16 to float32: see [`widen`].
    pub fn widen_f16(x: &[f16], out: &mut [f32]) = widen::from_f16;
    /// Codes of float16 to float32, times a factor: see [`widen::from_f16`].
    pub fn decode_f16(codes: &[[u8; 2]], factor: f32, out: &mut [f32]) = widen::from_f16::decode;
    /// Bfloat16 to float32: see [`widen`].
    pub fn widen_bf16(x: &[bf16], out: &mut [f32]) = widen::from_bf16;
    /// Takes the magnitudes inside a window out of a list: see [`window`].
    pub fn window(values: &[f32], low: u32, high: u32, out: &mut [u32]) -> (usize, usize) = window;
}

static SCALAR: Kernels = table!(Scalar, scalar);
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = table!(Avx2, avx2);
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = table!(Avx512, avx512);
#[cfg(target_arch = "aarch64")]
static NEON: Kernels = table!(Neon, neon);

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

    /// The kernels in use, found once: those of the highest level of this CPU, unless the environment
    /// variable `GRADWIRE_SIMD` names a lower one. Within [`at_level`], those of its level.
    pub fn current() -> &'static Self {
        static CURRENT: OnceLock<&'static Kernels> = OnceLock::new();
        CHOSEN
            .get()
            .unwrap_or_else(|| CURRENT.get_or_init(|| Self::of(preferred()).unwrap_or(&SCALAR)))
    }

    /// The level of these kernels.
    pub fn level(&self) -> Level {
        self.level
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({:?})", self.level)
    }
}

/// The level in use: that of [`Kernels::current`].
pub fn level() -> Level {
    Kernels::current().level()
}

thread_local! {
    static CHOSEN: Cell<Option<&'static Kernels>> = const { Cell::new(None) };
}

/// Has the kernels of a level in use in this thread while `work` runs, which gives them to the pool's.
/// `None` if this CPU lacks the level.
pub fn at_level<T>(level: Level, work: impl FnOnce() -> T) -> Option<T> {
    struct Before(Option<&'static Kernels>);

    impl Drop for Before {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }

    let kernels = Kernels::of(level)?;
    let _before = Before(CHOSEN.replace(Some(kernels)));
    Some(work())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::simd::available_levels;

    #[test]
    fn every_level_of_this_cpu_has_kernels_of_its_own_and_no_other_level_has_any() {
        let available = available_levels();
        for level in Level::ALL {
            let kernels = Kernels::of(level);
            assert_eq!(kernels.is_some(), available.contains(&level), "{level:?}");
            assert!(kernels.is_none_or(|kernels| kernels.level() == level));
        }
        for level in available.iter().filter(|level| **level != Level::Scalar) {
            let (one, scalar) = (Kernels::of(*level).unwrap(), Kernels::of(Level::Scalar).unwrap());
            assert!(!std::ptr::eq(one, scalar));
        }
    }

    #[test]
    fn the_kernels_in_use_are_found_once() {
        assert!(std::ptr::eq(Kernels::current(), Kernels::current()));
        assert_eq!(level(), Kernels::current().level());
    }

    #[test]
    fn a_level_is_in_use_in_one_thread_until_its_work_ends_also_in_a_panic() {
        let usual = level();
        let within = at_level(Level::Scalar, || {
            let other = std::thread::spawn(level).join().unwrap();
            let nested = available_levels().into_iter().map(|each| at_level(each, level)).collect();
            (level(), other, nested)
        });
        let nested: Vec<_> = available_levels().into_iter().map(Some).collect();
        assert_eq!(within, Some((Level::Scalar, usual, nested)));
        assert_eq!(level(), usual);
        let _ = catch_unwind(|| at_level(Level::Scalar, || panic!("within")));
        assert_eq!(level(), usual);
        for missing in Level::ALL.into_iter().filter(|each| !each.is_available()) {
            assert_eq!(at_level(missing, level), None);
        }
    }

    thread_local! {
        static FENCES: Cell<usize> = const { Cell::new(0) };
    }

    /// Kernels that count their fences.
    fn counting() -> Kernels {
        Kernels { fence: || FENCES.set(FENCES.get() + 1), ..table!(Scalar, scalar) }
    }

    #[test]
    fn a_fence_ends_streaming_once_also_in_a_panic() {
        let kernels = counting();
        kernels.streaming(|kernels| {
            kernels.stream(&mut [0.0], &[1.0]);
            assert_eq!(FENCES.get(), 0);
        });
        assert_eq!(FENCES.get(), 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            // Of two lengths.
            kernels.streaming(|kernels| kernels.stream(&mut [0.0], &[1.0, 2.0]));
        }));
        assert!(panicked.is_err());
        assert_eq!(FENCES.get(), 2);
    }
}
