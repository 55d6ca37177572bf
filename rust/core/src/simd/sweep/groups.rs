//! One loop over groups of 64 elements, generic over the vector and the type of the elements; the
//! rest is left to plain Rust.

use super::element::Element;
use super::{Feedback, Found, Gather, Moment};
use crate::simd::above::{Front, SLACK};
use crate::simd::{LANES, adam, moments};
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

    unsafe fn times(self, other: Self) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn over(self, other: Self) -> Self;
    unsafe fn root(self) -> Self;
    /// The smaller of both; where this is no number, that.
    unsafe fn at_most(self, other: Self) -> Self;

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

/// What is made of the elements of a gradient before they are added.
pub(super) trait Make<V: Vector> {
    /// That of sixteen elements, the first of which is the one `at` there.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    unsafe fn make<const STREAM: bool>(&self, v: V, at: usize) -> V;
}

/// Nothing else.
pub(super) struct AsTheyAre;

impl<V: Vector> Make<V> for AsTheyAre {
    #[inline(always)]
    unsafe fn make<const STREAM: bool>(&self, v: V, _: usize) -> V {
        v
    }
}

/// Steps, by [`adam::Rule::of`].
pub(super) struct Steps<V> {
    second: *const f32,
    next: *mut f32,
    keep: V,
    take: V,
    correction: V,
    eps: V,
    rate: V,
    most: V,
}

impl<V: Vector> Steps<V> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    unsafe fn new(moment: Moment<'_>) -> Self {
        let Moment { second, next, rule } = moment;
        let adam::Rule { keep, take, correction, eps, rate } = rule;
        // One pointer to what is next, that the other may be taken from it.
        let next = next.as_mut_ptr();
        let second = second.map_or(next.cast_const(), <[f32]>::as_ptr);
        // SAFETY: the features are the caller's promise.
        unsafe {
            let (keep, take) = (V::splat(keep), V::splat(take));
            let (correction, eps) = (V::splat(correction), V::splat(eps));
            let (rate, most) = (V::splat(rate), V::splat(f32::MAX));
            Self { second, next, keep, take, correction, eps, rate, most }
        }
    }
}

impl<V: Vector> Make<V> for Steps<V> {
    #[inline(always)]
    unsafe fn make<const STREAM: bool>(&self, v: V, at: usize) -> V {
        // SAFETY: features and pointers are the caller's promise. In place, each vector is loaded
        // before the next one is stored over it, and never again.
        unsafe {
            let square = self.take.times(v).times(v);
            let old = V::load(self.second.add(at));
            let next = self.keep.times(old).plus(square).at_most(self.most);
            let to = self.next.add(at);
            if STREAM {
                next.stream(to);
            } else {
                next.store(to);
            }
            let root = self.correction.times(next.root()).plus(self.eps);
            self.rate.times(v.over(root))
        }
    }
}

/// The loop over whole groups.
///
/// # Safety
///
/// The CPU has the features of `V`. `make` has pointers to as many elements as `x`. With `ADD`, the sum, and the residual if it is not in there, hold
/// as many elements as `x`; with `STREAM`, the sum begins on a cache line.
#[inline(always)]
unsafe fn groups<
    V: Vector,
    T: Element,
    M: Make<V>,
    const ADD: bool,
    const STREAM: bool,
    const SUMS: bool,
>(
    x: &[[T; GROUP]],
    make: &M,
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
                v = make.make::<STREAM>(v, at);
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
            None if sums => groups::<V, T, _, false, false, true>(x, &AsTheyAre, nothing, gather),
            None => groups::<V, T, _, false, false, false>(x, &AsTheyAre, nothing, gather),
            Some(feedback) => choose_added::<V, T, _>(x, &AsTheyAre, feedback, gather),
        }
    }
}

/// The same of what is added to a residual.
///
/// # Safety
///
/// As of [`groups`], whose `STREAM` is `feedback.streams`.
#[inline(always)]
unsafe fn choose_added<V: Vector, T: Element, M: Make<V>>(
    x: &[[T; GROUP]],
    make: &M,
    feedback: Feedback<'_>,
    gather: &mut Gather<'_>,
) -> Found {
    let Feedback { residual, decay, sum, streams } = feedback;
    let feedback = (residual, decay, sum);
    // SAFETY: as the caller promises.
    unsafe {
        match (streams, gather.moments.is_some()) {
            (true, true) => groups::<V, T, M, true, true, true>(x, make, feedback, gather),
            (true, false) => groups::<V, T, M, true, true, false>(x, make, feedback, gather),
            (false, true) => groups::<V, T, M, true, false, true>(x, make, feedback, gather),
            (false, false) => groups::<V, T, M, true, false, false>(x, make, feedback, gather),
        }
    }
}

/// The loop over steps.
///
/// # Safety
///
/// As of [`groups`], whose `STREAM` is `feedback.streams`; it holds for what is next, too.
#[inline(always)]
pub(super) unsafe fn choose_steps<V: Vector>(
    x: &[[f32; GROUP]],
    moment: Moment<'_>,
    feedback: Feedback<'_>,
    gather: &mut Gather<'_>,
) -> Found {
    // SAFETY: as the caller promises.
    unsafe { choose_added(x, &Steps::<V>::new(moment), feedback, gather) }
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
            let streams = streams && residual.is_some() && is_aligned(sum);
            let (head, tail) = Feedback { residual, decay, sum, streams }.split_at(done);
            (Some(head), Some(tail))
        }
    };
    // SAFETY: its features are the caller's promise.
    let found = unsafe { whole(groups, head, &mut gather) };
    if rest.is_empty() {
        return found;
    }
    let mut plain = [0.0; GROUP];
    let plain = &mut plain[..rest.len()];
    T::widen(rest, plain);
    found.and(super::scalar::of_float32(plain, tail, gather.after(done, found)))
}

/// Whether it begins on a cache line.
fn is_aligned(x: &[f32]) -> bool {
    x.as_ptr().addr().is_multiple_of(64)
}

/// The steps of whole groups by one level.
type WholeSteps = unsafe fn(&[[f32; GROUP]], Moment<'_>, Feedback<'_>, &mut Gather<'_>) -> Found;

/// As [`run_with`], of steps.
///
/// # Safety
///
/// The CPU has the features of `whole`.
pub(super) unsafe fn run_steps_with(
    x: &[f32],
    moment: Moment<'_>,
    feedback: Feedback<'_>,
    mut gather: Gather<'_>,
    whole: WholeSteps,
) -> Found {
    let room = x.len() + SLACK;
    assert!(gather.indices.len() >= room && gather.values.len() >= room, "room for survivors");
    let Feedback { residual, decay, sum, streams } = feedback;
    let given = [Some(&*sum), residual, Some(&*moment.next), moment.second];
    assert!(
        given.into_iter().flatten().all(|given| given.len() == x.len()),
        "blocks of one length"
    );
    let apart = residual.is_some() && moment.second.is_some();
    let streams = streams && apart && is_aligned(sum) && is_aligned(moment.next);
    let (groups, rest) = x.as_chunks();
    let done = x.len() - rest.len();
    let (head, tail) = Feedback { residual, decay, sum, streams }.split_at(done);
    let (first, last) = moment.split_at(done);
    // SAFETY: its features are the caller's promise.
    let found = unsafe { whole(groups, first, head, &mut gather) };
    if rest.is_empty() {
        return found;
    }
    found.and(super::steps::scalar(rest, last, tail, gather.after(done, found)))
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

/// A level of steps.
macro_rules! steps_level {
    ($level:ident, $features:literal, $vector:ty) => {
        #[target_feature(enable = $features)]
        pub(in crate::simd) fn $level(
            x: &[f32],
            moment: Moment<'_>,
            feedback: Feedback<'_>,
            gather: Gather<'_>,
        ) -> Found {
            #[target_feature(enable = $features)]
            fn whole(
                x: &[[f32; GROUP]],
                moment: Moment<'_>,
                feedback: Feedback<'_>,
                gather: &mut Gather<'_>,
            ) -> Found {
                // SAFETY: this function has the features of the vector; lengths and alignment were
                // checked by `run_steps_with`.
                unsafe { choose_steps::<$vector>(x, moment, feedback, gather) }
            }
            // SAFETY: this function has the features of `whole`.
            unsafe { run_steps_with(x, moment, feedback, gather, whole) }
        }
    };
}

pub(super) use steps_level;
