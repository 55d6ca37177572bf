//! The vectors that the loops of a sweep are made of.

use crate::simd::LANES;
use crate::simd::above::Front;
use crate::simd::moments;
use half::{bf16, f16};

/// Elements a round of a loop takes.
pub(super) const GROUP: usize = 64;

/// Vectors of a group.
pub(super) const HELD: usize = GROUP / LANES;

/// Sixteen float32, in one register or more.
///
/// # Safety
///
/// Every method needs the CPU features of its implementation. Pointers are valid for sixteen
/// elements, and aligned to a cache line where `stream` says so.
pub(super) trait Vector: Copy {
    /// Running sums: the registers of [`moments::Lanes`].
    type Sums: Copy;
    /// Running maxima of magnitude bits.
    type Peak: Copy;
    /// What is known of the hits of a group.
    type Hits: Copy;
    /// Whether a group stays in registers until its hits are written, or is read again if it has any:
    /// where registers are few.
    const HOLDS: bool;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f64(from: *const f64) -> Self;
    unsafe fn load_f16(from: *const f16) -> Self;
    unsafe fn load_bf16(from: *const bf16) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn stream(self, to: *mut f32);
    /// Rounds a pair to bfloat16 by draws of 16 bits, as [`dither`](crate::simd::dither) does.
    unsafe fn round(pair: [Self; 2], draws: [[u32; LANES]; 2], to: *mut bf16, streams: bool);
    /// Has so many elements brought to the caches, wherever that is: it need not be memory.
    fn fetch<T>(from: *const T, len: usize);
    /// `self + decay * residual`, two rounded operations.
    unsafe fn add_scaled(self, residual: Self, decay: Self) -> Self;

    unsafe fn times(self, other: Self) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn over(self, other: Self) -> Self;
    unsafe fn root(self) -> Self;
    /// The smaller of both; where this is no number, that.
    unsafe fn at_most(self, other: Self) -> Self;
    /// The larger of both, if both are numbers.
    unsafe fn at_least(self, other: Self) -> Self;
    unsafe fn magnitude(self) -> Self;
    /// See [`normal_or_zero`](crate::simd::normal_or_zero).
    unsafe fn normal_or_zero(self) -> Self;

    unsafe fn no_peak() -> Self::Peak;
    unsafe fn highest(peak: Self::Peak) -> u32;

    unsafe fn no_hits() -> Self::Hits;
    /// Takes the `j`-th vector of a group into its hits, and into the peak here or in [`Vector::any`].
    unsafe fn look(self, j: usize, bound: Self, hits: &mut Self::Hits, peak: &mut Self::Peak);
    /// Whether any vector of the group may have a hit.
    unsafe fn any(bound: Self, hits: &Self::Hits, peak: &mut Self::Peak) -> bool;
    /// Writes the hits of the `j`-th vector of a group, which begins at position `at`.
    unsafe fn compact(self, j: usize, bound: Self, hits: &Self::Hits, at: u32, to: &mut Front);

    unsafe fn load_sums(lanes: &moments::Lanes) -> Self::Sums;
    /// Adds the exceedances over the location, their squares, and how many they are.
    unsafe fn add_to(self, location: Self, sums: &mut Self::Sums);
    unsafe fn store_sums(sums: Self::Sums, lanes: &mut moments::Lanes);
}
