//! One loop over groups of 64 elements, generic over the vector and the type of the elements; the
//! rest is left to plain Rust.

use super::element::Element;
use super::{Feedback, Found, Gather};
use crate::simd::above::{Front, SLACK};
use crate::simd::{LANES, moments};
use half::{bf16, f16};

/// Elements a round of the loop takes.
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
    /// `self + decay * residual`, two rounded operations.
    unsafe fn add_scaled(self, residual: Self, decay: Self) -> Self;

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

/// The loop over whole groups.
///
/// # Safety
///
/// The CPU has the features of `V`. With `ADD`, the sum, and the residual if it is not in there, hold
/// as many elements as `x`; with `STREAM`, the sum begins on a cache line.
#[inline(always)]
unsafe fn groups<V: Vector, T: Element, const ADD: bool, const STREAM: bool, const SUMS: bool>(
    x: &[[T; GROUP]],
    feedback: (Option<&[f32]>, f32, &mut [f32]),
    gather: &mut Gather<'_>,
) -> Found {
    let (residual, decay, sum) = feedback;
    // One pointer to the sum, that the residual's may be taken from it: in place they are the same.
    let sum = sum.as_mut_ptr();
    let residual = residual.map_or(sum.cast_const(), <[f32]>::as_ptr);
    let mut none = moments::Lanes::default();
    let (location, lanes) = match &mut gather.moments {
        Some((location, lanes)) => (*location, &mut **lanes),
        None => (0.0, &mut none),
    };
    // SAFETY: the features are the caller's promise. A group is four vectors of x, and of residual
    // and sum, which are as long. In place, each vector is loaded before the sum is stored over it,
    // and never again.
    unsafe {
        let (bound, decay) = (V::splat(gather.bound), V::splat(decay));
        let location = V::splat(location);
        let (mut sums, mut peak) = (V::load_sums(lanes), V::no_peak());
        let mut to = Front::of(x.len() * GROUP, gather.indices, gather.values);
        for (g, group) in x.iter().enumerate() {
            let mut held = [V::splat(0.0); HELD];
            let mut hits = V::no_hits();
            for (j, held) in held.iter_mut().enumerate() {
                let at = g * GROUP + j * LANES;
                let mut v: V = T::load(group.as_ptr().add(j * LANES));
                if ADD {
                    v = v.add_scaled(V::load(residual.add(at)), decay);
                    let to = sum.add(at);
                    if STREAM { v.stream(to) } else { v.store(to) }
                }
                if SUMS {
                    v.add_to(location, &mut sums);
                }
                v.look(j, bound, &mut hits, &mut peak);
                if V::HOLDS {
                    *held = v;
                }
            }
            if !V::any(bound, &hits, &mut peak) {
                continue;
            }
            for (j, held) in held.into_iter().enumerate() {
                let at = gather.base + (g * GROUP + j * LANES) as u32;
                let v = match (V::HOLDS, ADD) {
                    (true, _) => held,
                    (false, true) => V::load(sum.add(g * GROUP + j * LANES)),
                    (false, false) => T::load(group.as_ptr().add(j * LANES)),
                };
                v.compact(j, bound, &hits, at, &mut to);
            }
        }
        if SUMS {
            V::store_sums(sums, lanes);
        }
        Found { peak: V::highest(peak), count: to.count() }
    }
}

/// The loop for what is wanted.
///
/// # Safety
///
/// As of [`groups`], whose `STREAM` is `feedback.streams`.
#[inline(always)]
pub(super) unsafe fn choose<V: Vector, T: Element>(
    x: &[[T; GROUP]],
    feedback: Option<Feedback<'_>>,
    gather: &mut Gather<'_>,
) -> Found {
    let sums = gather.moments.is_some();
    let nothing: (_, _, &mut [f32]) = (None, 0.0, &mut []);
    // SAFETY: as the caller promises.
    unsafe {
        match feedback {
            None if sums => groups::<V, T, false, false, true>(x, nothing, gather),
            None => groups::<V, T, false, false, false>(x, nothing, gather),
            Some(Feedback { residual, decay, sum, streams }) => {
                let feedback = (residual, decay, sum);
                match (streams, sums) {
                    (true, true) => groups::<V, T, true, true, true>(x, feedback, gather),
                    (true, false) => groups::<V, T, true, true, false>(x, feedback, gather),
                    (false, true) => groups::<V, T, true, false, true>(x, feedback, gather),
                    (false, false) => groups::<V, T, true, false, false>(x, feedback, gather),
                }
            }
        }
    }
}

/// The groups of a block by one level.
type Whole<T> = unsafe fn(&[[T; GROUP]], Option<Feedback<'_>>, &mut Gather<'_>) -> Found;

/// The sweep of a block: the groups by `whole`, the rest by plain Rust.
///
/// # Safety
///
/// The CPU has the features of `whole`.
pub(super) unsafe fn run_with<T: Element>(
    x: &[T],
    feedback: Option<Feedback<'_>>,
    mut gather: Gather<'_>,
    whole: Whole<T>,
) -> Found {
    let room = x.len() + SLACK;
    assert!(gather.indices.len() >= room && gather.values.len() >= room, "room for survivors");
    let (groups, rest) = x.as_chunks();
    let done = x.len() - rest.len();
    let (head, tail) = match feedback {
        None => (None, None),
        Some(Feedback { residual, decay, sum, streams }) => {
            let same = sum.len() == x.len() && residual.is_none_or(|r| r.len() == x.len());
            assert!(same, "blocks of one length");
            let (front, back) = sum.split_at_mut(done);
            let aligned = front.as_ptr().addr().is_multiple_of(64);
            let streams = streams && residual.is_some() && aligned;
            let (old, older) = residual.map(|r| r.split_at(done)).unzip();
            (
                Some(Feedback { residual: old, decay, sum: front, streams }),
                Some(Feedback { residual: older, decay, sum: back, streams }),
            )
        }
    };
    // SAFETY: its features are the caller's promise.
    let found = unsafe { whole(groups, head, &mut gather) };
    if rest.is_empty() {
        return found;
    }
    let Gather { moments, bound, base, indices, values } = gather;
    let (base, indices) = (base + done as u32, &mut indices[found.count..]);
    let values = &mut values[found.count..];
    let mut plain = [0.0; GROUP];
    let plain = &mut plain[..rest.len()];
    T::widen(rest, plain);
    let gather = Gather { moments, bound, base, indices, values };
    let last = super::scalar::of_float32(plain, tail, gather);
    Found { peak: found.peak.max(last.peak), count: found.count + last.count }
}

/// A level: its sweep, compiled for each combination of what is wanted.
macro_rules! level {
    ($level:ident, $features:literal, $vector:ty) => {
        #[target_feature(enable = $features)]
        pub(in crate::simd) fn $level(
            x: Input<'_>,
            feedback: Option<Feedback<'_>>,
            gather: Gather<'_>,
        ) -> Found {
            #[target_feature(enable = $features)]
            fn whole<T: Element>(
                x: &[[T; GROUP]],
                feedback: Option<Feedback<'_>>,
                gather: &mut Gather<'_>,
            ) -> Found {
                // SAFETY: this function has the features of the vector; lengths and alignment were
                // checked by `run_with`.
                unsafe { choose::<$vector, T>(x, feedback, gather) }
            }
            // SAFETY: this function has the features of `whole`.
            unsafe {
                match x {
                    Input::F32(x) => run_with(x, feedback, gather, whole),
                    Input::F64(x) => run_with(x, feedback, gather, whole),
                    Input::F16(x) => run_with(x, feedback, gather, whole),
                    Input::BF16(x) => run_with(x, feedback, gather, whole),
                }
            }
        }
    };
}

pub(super) use level;
