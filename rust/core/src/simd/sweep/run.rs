//! A block: its whole groups by a loop, what is left of it by plain Rust.

use super::element::Element;
use super::vector::GROUP;
use super::{Feedback, Found, Gather, Moment, Rounded};

/// Whether it begins on a cache line.
fn is_aligned<T>(x: &[T]) -> bool {
    x.as_ptr().addr().is_multiple_of(64)
}

/// A few elements as float32.
fn widened<'s, T: Element>(x: &[T], plain: &'s mut [f32; GROUP]) -> &'s [f32] {
    let plain = &mut plain[..x.len()];
    T::widen(x, plain);
    plain
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
    gather.check_room(x.len());
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
    let last =
        super::scalar::of_float32(widened(rest, &mut plain), tail, gather.after(done, found));
    found.and(last)
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
    gather.check_room(x.len());
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

/// Whole groups that are added to a residual in bfloat16, by one level.
type WholeRounded<T> = unsafe fn(&[[T; GROUP]], Rounded<'_>, &mut Gather<'_>) -> Found;

/// As [`run_with`], with a residual in bfloat16.
///
/// # Safety
///
/// The CPU has the features of `whole`.
pub(super) unsafe fn run_rounded_with<T: Element>(
    x: &[T],
    mut memory: Rounded<'_>,
    mut gather: Gather<'_>,
    whole: WholeRounded<T>,
) -> Found {
    gather.check_room(x.len());
    memory.check(x.len());
    if let Some(keep) = &mut memory.keep {
        keep.streams &= memory.residual.is_some() && is_aligned(keep.next);
    }
    let (groups, rest) = x.as_chunks();
    let done = x.len() - rest.len();
    let (head, tail) = memory.split_at(done);
    // SAFETY: its features are the caller's promise.
    let found = unsafe { whole(groups, head, &mut gather) };
    if rest.is_empty() {
        return found;
    }
    let mut plain = [0.0; GROUP];
    let last =
        super::rounded::of_float32(widened(rest, &mut plain), tail, gather.after(done, found));
    found.and(last)
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

/// A level of sweeps with a residual in bfloat16.
macro_rules! rounded_level {
    ($level:ident, $features:literal, $vector:ty) => {
        #[target_feature(enable = $features)]
        pub(in crate::simd) fn $level(
            x: Input<'_>,
            memory: Rounded<'_>,
            gather: Gather<'_>,
        ) -> Found {
            #[target_feature(enable = $features)]
            fn whole<T: Element>(
                x: &[[T; GROUP]],
                memory: Rounded<'_>,
                gather: &mut Gather<'_>,
            ) -> Found {
                // SAFETY: this function has the features of the vector; lengths and alignment were
                // checked by `run_rounded_with`.
                unsafe { choose_rounded::<$vector, T>(x, memory, gather) }
            }
            if !memory.begins_a_group() {
                return scalar(x, memory, gather);
            }
            // SAFETY: this function has the features of `whole`.
            unsafe {
                match x {
                    Input::F32(x) => run_rounded_with(x, memory, gather, whole),
                    Input::F64(x) => run_rounded_with(x, memory, gather, whole),
                    Input::F16(x) => run_rounded_with(x, memory, gather, whole),
                    Input::BF16(x) => run_rounded_with(x, memory, gather, whole),
                }
            }
        }
    };
}

pub(super) use rounded_level;
