//! One loop over groups of 64 elements, generic over the vector, the type of the elements, what is made
//! of them and what they are added to.

use super::element::Element;
use super::feed::{Feed, Nothing, Rounding, Stays, Sums, Widened};
use super::make::{AsTheyAre, Make, Moved, Steps};
use super::vector::{GROUP, HELD, Vector};
use super::{Addend, Feedback, Found, Gather, Momentum, Rounded};
use crate::simd::above::Front;
use crate::simd::{LANES, moments};

/// The loop over whole groups.
///
/// # Safety
///
/// The CPU has the features of `V`. `make` and `feed` have pointers to as many elements as `x`; where
/// they write past the caches, to what begins on a cache line.
#[inline(always)]
unsafe fn groups<V: Vector, T: Element, F: Feed<V>, const SUMS: bool>(
    x: &[[T; GROUP]],
    make: &impl Make<V>,
    feed: &F,
    gather: &mut Gather<'_>,
) -> Found {
    let mut none = moments::Lanes::default();
    let (location, lanes) = match &mut gather.moments {
        Some((location, lanes)) => (*location, &mut **lanes),
        None => (0.0, &mut none),
    };
    // SAFETY: the features are the caller's promise. A group is four vectors of x, and of what `make` and
    // `feed` point to, which is as long.
    unsafe {
        let bound = V::splat(gather.bound);
        let location = V::splat(location);
        let (mut sums, mut peak) = (V::load_sums(lanes), V::no_peak());
        let mut to = Front::of(x.len() * GROUP, gather.indices, gather.values);
        let mut ahead = feed.draws(0);
        for (g, group) in x.iter().enumerate() {
            let mut hits = V::no_hits();
            let draws = ahead;
            ahead = feed.draws((g + 1) * GROUP);
            if F::AHEAD > 0 {
                V::fetch(group.as_ptr().wrapping_add(F::AHEAD), GROUP);
                feed.fetch(g * GROUP + F::AHEAD);
            }
            // Not a loop, which the compiler may leave one: then nothing stays in registers. Nor a
            // closure, which lacks the features.
            macro_rules! vector {
                ($j:literal) => {{
                    let at = g * GROUP + $j * LANES;
                    let new = make.make(T::load(group.as_ptr().add($j * LANES)), at, F::STREAM);
                    let v = feed.sum(new, at);
                    if SUMS {
                        v.add_to(location, &mut sums);
                    }
                    v.look($j, bound, &mut hits, &mut peak);
                    v
                }};
            }
            let held: [V; HELD] = [vector!(0), vector!(1), vector!(2), vector!(3)];
            feed.close(&held, &draws, g * GROUP);
            if !V::any(bound, &hits, &mut peak) {
                continue;
            }
            for (j, held) in held.into_iter().enumerate() {
                let at = g * GROUP + j * LANES;
                let v = if V::HOLDS {
                    held
                } else {
                    feed.again(T::load(group.as_ptr().add(j * LANES)), at)
                };
                v.compact(j, bound, &hits, gather.base + at as u32, &mut to);
            }
        }
        if SUMS {
            V::store_sums(sums, lanes);
        }
        Found { peak: V::highest(peak), count: to.count() }
    }
}

/// The loop with sums if they are wanted.
///
/// # Safety
///
/// As of [`groups`].
#[inline(always)]
unsafe fn with_or_without_sums<V: Vector, T: Element>(
    x: &[[T; GROUP]],
    make: &impl Make<V>,
    feed: &impl Feed<V>,
    gather: &mut Gather<'_>,
) -> Found {
    // SAFETY: as the caller promises.
    unsafe {
        if gather.moments.is_some() {
            groups::<V, T, _, true>(x, make, feed, gather)
        } else {
            groups::<V, T, _, false>(x, make, feed, gather)
        }
    }
}

/// The loop that adds what was made to a residual.
///
/// # Safety
///
/// The CPU has the features of `V`. All that there is has as many elements as `x`; the sum, and what
/// `make` writes, begin on a cache line if `feedback.streams`.
#[inline(always)]
unsafe fn added<V: Vector, T: Element>(
    x: &[[T; GROUP]],
    make: &impl Make<V>,
    feedback: Feedback<'_>,
    gather: &mut Gather<'_>,
) -> Found {
    // SAFETY: as the caller promises.
    unsafe {
        if feedback.streams.is_some() {
            with_or_without_sums(x, make, &Sums::<V, true>::new(feedback), gather)
        } else {
            with_or_without_sums(x, make, &Sums::<V, false>::new(feedback), gather)
        }
    }
}

/// The loop for what is wanted.
///
/// # Safety
///
/// The CPU has the features of `V`. All that there is has as many elements as `x`; what is written
/// begins on a cache line if it streams.
#[inline(always)]
pub(super) unsafe fn choose<V: Vector, T: Element>(
    x: &[[T; GROUP]],
    memory: Addend<'_>,
    gather: &mut Gather<'_>,
) -> Found {
    // SAFETY: as the caller promises.
    unsafe {
        match memory {
            Addend::None => with_or_without_sums::<V, T>(x, &AsTheyAre, &Nothing, gather),
            Addend::Residual(feedback) => added::<V, T>(x, &AsTheyAre, feedback, gather),
            Addend::Steps(moment, feedback) => {
                added::<V, T>(x, &Steps::new(moment), feedback, gather)
            }
            Addend::Momentum(momentum, feedback) => {
                if momentum.rule.nesterov {
                    moved::<V, T, true>(x, momentum, feedback, gather)
                } else {
                    moved::<V, T, false>(x, momentum, feedback, gather)
                }
            }
            Addend::Rounded(memory) => rounded::<V, T>(x, memory, gather),
        }
    }
}

/// The loop that adds what a momentum makes to a residual, which stays or becomes the sum.
///
/// # Safety
///
/// As of [`choose`].
#[inline(always)]
unsafe fn moved<V: Vector, T: Element, const NESTEROV: bool>(
    x: &[[T; GROUP]],
    mut momentum: Momentum<'_>,
    feedback: Feedback<'_>,
    gather: &mut Gather<'_>,
) -> Found {
    // SAFETY: as the caller promises.
    unsafe {
        let make = Moved::<V, NESTEROV>::new(&mut momentum);
        if momentum.stays.is_empty() {
            added::<V, T>(x, &make, feedback, gather)
        } else if feedback.streams.is_some() {
            let feed = Stays::<V, true>::new(feedback, momentum.stays);
            with_or_without_sums(x, &make, &feed, gather)
        } else {
            let feed = Stays::<V, false>::new(feedback, momentum.stays);
            with_or_without_sums(x, &make, &feed, gather)
        }
    }
}

/// The loop that adds a residual in bfloat16.
///
/// # Safety
///
/// As of [`choose`].
#[inline(always)]
unsafe fn rounded<V: Vector, T: Element>(
    x: &[[T; GROUP]],
    memory: Rounded<'_>,
    gather: &mut Gather<'_>,
) -> Found {
    let Rounded { residual, decay, sum, keep } = memory;
    // SAFETY: as the caller promises.
    unsafe {
        let Some(keep) = keep else {
            let feed = Widened::new(residual.as_ptr(), decay, sum.as_mut_ptr());
            return with_or_without_sums::<V, T>(x, &AsTheyAre, &feed, gather);
        };
        macro_rules! rounding {
            ($filters:literal, $streams:literal) => {{
                let feed = Rounding::<V, $filters, $streams>::new(residual, decay, sum, keep);
                with_or_without_sums::<V, T>(x, &AsTheyAre, &feed, gather)
            }};
        }
        match (keep.filter.is_some(), keep.streams.is_some()) {
            (false, false) => rounding!(false, false),
            (false, true) => rounding!(false, true),
            (true, false) => rounding!(true, false),
            (true, true) => rounding!(true, true),
        }
    }
}
