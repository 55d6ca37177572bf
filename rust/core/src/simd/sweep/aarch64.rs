//! NEON: sixteen float32 in four registers.
//!
//! A group is looked through for its peak alone: where that is not above the bound there is no hit, and
//! which entries are hits is asked only of the groups that have one.

use super::element::Element;
use super::groups::choose;
use super::run::{level, run_with};
use super::vector::{GROUP, Vector};
use super::{Addend, Found, Gather};
use crate::Input;
use crate::simd::above::{Front, aarch64 as above};
use crate::simd::widen::from_f16::aarch64::{widen_high, widen_low};
use crate::simd::{LANES, moments, normal};
use half::{bf16, f16};
use std::arch::aarch64::{
    float32x4_t, float64x2_t, uint32x4_t, vabsq_f32, vaddq_f32, vaddq_f64, vaddq_u32, vaddvq_u32,
    vcgtzq_f32, vcvt_f32_f64, vcvt_f64_f32, vcvt_high_f32_f64, vcvt_high_f64_f32, vdivq_f32,
    vdupq_n_f32, vdupq_n_f64, vdupq_n_u32, vget_low_f32, vget_low_u16, vld1q_f32, vld1q_f64,
    vld1q_u16, vld1q_u32, vmaxnmq_f32, vmaxq_f32, vmaxq_u32, vmaxvq_u32, vminq_f32, vmulq_f32,
    vmulq_f64, vreinterpretq_f32_u32, vreinterpretq_u16_u32, vreinterpretq_u32_f32,
    vshll_high_n_u16, vshll_n_u16, vshlq_n_u32, vsqrtq_f32, vst1q_f32, vst1q_f64, vst1q_u16,
    vsubq_f32, vsubq_u32, vuzp2q_u16,
};

/// See [`Vector`]: needs NEON, which is part of the target's baseline.
#[derive(Clone, Copy)]
pub(super) struct Neon([float32x4_t; 4]);

/// The registers of the moments: sums, sums of squares, and counts.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    sum: [float64x2_t; 8],
    sum_sq: [float64x2_t; 8],
    count: uint32x4_t,
}

// SAFETY of all methods: pointers are the caller's promise, see the trait.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Neon {
    type Sums = Sums;
    type Peak = uint32x4_t;
    /// The peaks of the group.
    type Hits = [uint32x4_t; 2];
    const HOLDS: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self([vdupq_n_f32(value); 4]) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe {
            Self([
                vld1q_f32(from),
                vld1q_f32(from.add(4)),
                vld1q_f32(from.add(8)),
                vld1q_f32(from.add(12)),
            ])
        }
    }

    #[inline(always)]
    unsafe fn load_f64(from: *const f64) -> Self {
        let mut four = [unsafe { vdupq_n_f32(0.0) }; 4];
        for (i, v) in four.iter_mut().enumerate() {
            unsafe {
                let low = vcvt_f32_f64(vld1q_f64(from.add(4 * i)));
                *v = vcvt_high_f32_f64(low, vld1q_f64(from.add(4 * i + 2)));
            }
        }
        Self(four)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        unsafe {
            let (a, b) = (vld1q_u16(from.cast()), vld1q_u16(from.add(8).cast()));
            Self([widen_low(a), widen_high(a), widen_low(b), widen_high(b)])
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        unsafe {
            let (a, b) = (vld1q_u16(from.cast()), vld1q_u16(from.add(8).cast()));
            Self([
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vshll_n_u16::<0>(vget_low_u16(a)))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vshll_high_n_u16::<0>(a))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vshll_n_u16::<0>(vget_low_u16(b)))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vshll_high_n_u16::<0>(b))),
            ])
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, v) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(to.add(4 * i), v) };
        }
    }

    /// NEON's stores past the caches are hints that no intrinsic gives.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe { self.store(to) };
    }

    #[inline(always)]
    unsafe fn round(pair: [Self; 2], draws: [[u32; LANES]; 2], to: *mut bf16, _streams: bool) {
        for (i, (vector, draws)) in pair.into_iter().zip(&draws).enumerate() {
            let mut sums = [unsafe { vdupq_n_u32(0) }; 4];
            for (j, sum) in sums.iter_mut().enumerate() {
                let draws = unsafe { vld1q_u32(draws.as_ptr().add(4 * j)) };
                *sum = unsafe { vaddq_u32(vreinterpretq_u32_f32(vector.0[j]), draws) };
            }
            for (j, pair) in sums.as_chunks::<2>().0.iter().enumerate() {
                unsafe {
                    let low = vreinterpretq_u16_u32(pair[0]);
                    let high = vreinterpretq_u16_u32(pair[1]);
                    // The upper halves.
                    let halves = vuzp2q_u16(low, high);
                    vst1q_u16(to.add(LANES * i + 8 * j).cast(), halves);
                }
            }
        }
    }

    /// No intrinsic asks for memory.
    #[inline(always)]
    fn fetch<T>(_from: *const T, _len: usize) {}

    #[inline(always)]
    unsafe fn add_scaled(self, residual: Self, decay: Self) -> Self {
        let mut sum = self.0;
        for (i, sum) in sum.iter_mut().enumerate() {
            *sum = unsafe { vaddq_f32(*sum, vmulq_f32(decay.0[i], residual.0[i])) };
        }
        Self(sum)
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        let mut all = self.0;
        for (i, v) in all.iter_mut().enumerate() {
            *v = unsafe { vmulq_f32(*v, other.0[i]) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        let mut all = self.0;
        for (i, v) in all.iter_mut().enumerate() {
            *v = unsafe { vaddq_f32(*v, other.0[i]) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn over(self, other: Self) -> Self {
        let mut all = self.0;
        for (i, v) in all.iter_mut().enumerate() {
            *v = unsafe { vdivq_f32(*v, other.0[i]) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn root(self) -> Self {
        let mut all = self.0;
        for v in &mut all {
            *v = unsafe { vsqrtq_f32(*v) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn at_most(self, other: Self) -> Self {
        let mut all = self.0;
        for (i, v) in all.iter_mut().enumerate() {
            *v = unsafe { vminq_f32(*v, other.0[i]) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn at_least(self, other: Self) -> Self {
        let mut all = self.0;
        for (i, v) in all.iter_mut().enumerate() {
            *v = unsafe { vmaxq_f32(*v, other.0[i]) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn magnitude(self) -> Self {
        let mut all = self.0;
        for v in &mut all {
            *v = unsafe { vabsq_f32(*v) };
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn normal_or_zero(self) -> Self {
        let mut all = self.0;
        for v in &mut all {
            *v = normal::neon(*v);
        }
        Self(all)
    }

    #[inline(always)]
    unsafe fn no_peak() -> uint32x4_t {
        unsafe { vdupq_n_u32(0) }
    }

    #[inline(always)]
    unsafe fn highest(peak: uint32x4_t) -> u32 {
        unsafe { vmaxvq_u32(peak) }
    }

    #[inline(always)]
    unsafe fn no_hits() -> [uint32x4_t; 2] {
        unsafe { [vdupq_n_u32(0); 2] }
    }

    #[inline(always)]
    unsafe fn look(
        self,
        _j: usize,
        _bound: Self,
        peaks: &mut [uint32x4_t; 2],
        _peak: &mut uint32x4_t,
    ) {
        for (i, v) in self.0.into_iter().enumerate() {
            peaks[i % 2] = unsafe { vmaxq_u32(peaks[i % 2], above::magnitudes(v)) };
        }
    }

    #[inline(always)]
    unsafe fn any(bound: Self, peaks: &[uint32x4_t; 2], peak: &mut uint32x4_t) -> bool {
        let (any, largest) = above::may_hit(*peaks, bound.0[0]);
        *peak = unsafe { vmaxq_u32(*peak, largest) };
        any
    }

    #[inline(always)]
    unsafe fn compact(
        self,
        _j: usize,
        bound: Self,
        _peaks: &[uint32x4_t; 2],
        at: u32,
        to: &mut Front,
    ) {
        unsafe { above::store(self.0, bound.0[0], at, to) };
    }

    #[inline(always)]
    unsafe fn load_sums(lanes: &moments::Lanes) -> Sums {
        let (sum, sum_sq) = lanes.as_ptrs();
        unsafe {
            let zeros = [vdupq_n_f64(0.0); 8];
            let mut sums = Sums { sum: zeros, sum_sq: zeros, count: vdupq_n_u32(0) };
            for i in 0..8 {
                sums.sum[i] = vld1q_f64(sum.add(2 * i));
                sums.sum_sq[i] = vld1q_f64(sum_sq.add(2 * i));
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn add_to(self, location: Self, sums: &mut Sums) {
        for (i, v) in self.0.into_iter().enumerate() {
            unsafe {
                let difference = vsubq_f32(vabsq_f32(v), location.0[i]);
                // The larger of zero and what is not a number is zero.
                let e = vmaxnmq_f32(difference, vdupq_n_f32(0.0));
                let halves = [vcvt_f64_f32(vget_low_f32(e)), vcvt_high_f64_f32(e)];
                for (j, wide) in halves.into_iter().enumerate() {
                    let at = 2 * i + j;
                    sums.sum[at] = vaddq_f64(sums.sum[at], wide);
                    sums.sum_sq[at] = vaddq_f64(sums.sum_sq[at], vmulq_f64(wide, wide));
                }
                // True is minus one.
                sums.count = vsubq_u32(sums.count, vcgtzq_f32(difference));
            }
        }
    }

    #[inline(always)]
    unsafe fn store_sums(sums: Sums, lanes: &mut moments::Lanes) {
        // A block has too few elements for these counts to overflow.
        lanes.add_count(u64::from(unsafe { vaddvq_u32(sums.count) }));
        let (sum, sum_sq) = lanes.as_mut_ptrs();
        for i in 0..8 {
            unsafe {
                vst1q_f64(sum.add(2 * i), sums.sum[i]);
                vst1q_f64(sum_sq.add(2 * i), sums.sum_sq[i]);
            }
        }
    }
}

level!(neon, "neon", Neon);
