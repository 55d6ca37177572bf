//! A block: its whole groups by a loop, what is left of it by plain Rust.

use super::element::Element;
use super::scalar::of_float32;
use super::vector::GROUP;
use super::{Addend, Found, Gather};

/// The groups of a block by one level.
type Whole<T> = unsafe fn(&[[T; GROUP]], Addend<'_>, &mut Gather<'_>) -> Found;

/// The sweep of a block: the groups by `whole`, the rest by plain Rust.
///
/// # Safety
///
/// The CPU has the features of `whole`.
pub(super) unsafe fn run_with<T: Element>(
    x: &[T],
    mut memory: Addend<'_>,
    mut gather: Gather<'_>,
    whole: Whole<T>,
) -> Found {
    gather.check_capacity(x.len());
    memory.check(x.len());
    memory.stream_if_aligned();
    let (groups, rest) = x.as_chunks();
    let done = x.len() - rest.len();
    let (head, tail) = memory.split_at(done);
    // SAFETY: its features are the caller's promise.
    let found = unsafe { whole(groups, head, &mut gather) };
    if rest.is_empty() {
        return found;
    }
    let plain = &mut [0.0; GROUP][..rest.len()];
    T::widen(rest, plain);
    found.and(of_float32(plain, tail, gather.after(done, found)))
}

/// A level: its sweep, compiled for each combination of what is wanted.
macro_rules! level {
    ($level:ident, $features:literal, $vector:ty) => {
        #[target_feature(enable = $features)]
        pub(in crate::simd) fn $level(
            x: Input<'_>,
            memory: Addend<'_>,
            gather: Gather<'_>,
        ) -> Found {
            #[target_feature(enable = $features)]
            fn whole<T: Element>(
                x: &[[T; GROUP]],
                memory: Addend<'_>,
                gather: &mut Gather<'_>,
            ) -> Found {
                // SAFETY: this function has the features of the vector; lengths and alignment were
                // checked by `run_with`.
                unsafe { choose::<$vector, T>(x, memory, gather) }
            }
            if !memory.begins_a_group() {
                return super::scalar(x, memory, gather);
            }
            // SAFETY: this function has the features of `whole`.
            unsafe {
                match x {
                    Input::F32(x) => run_with(x, memory, gather, whole),
                    Input::F64(x) => run_with(x, memory, gather, whole),
                    Input::F16(x) => run_with(x, memory, gather, whole),
                    Input::BF16(x) => run_with(x, memory, gather, whole),
                }
            }
        }
    };
}

pub(super) use level;
