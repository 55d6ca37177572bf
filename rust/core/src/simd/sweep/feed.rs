//! What the elements of a sweep are added to, and what is written of that.

use super::vector::{GROUP, HELD, Vector};
use super::{Feedback, Keep};
use crate::rng::Key;
use crate::simd::{LANES, dither};
use half::bf16;

/// Adds something to what was made of a gradient.
pub(super) trait Feed<V: Vector> {
    /// Whether what a loop writes goes past the caches.
    const STREAM: bool;
    /// How many elements ahead a loop asks for memory. It does not for zero: where it has little else to
    /// do, what it reads is under way early enough.
    const AHEAD: usize = 0;
    /// The random numbers of a group.
    type Draws: Copy;

    /// Those of the group whose first element is the one `at` there. A loop has them drawn a group
    /// ahead: they take long, and a branch on what a group holds must not wait for them.
    fn draws(&self, at: usize) -> Self::Draws;

    /// Asks for what is read of a group besides the gradient, wherever that is.
    #[inline(always)]
    fn fetch(&self, _at: usize) {}

    /// The sums of `new` and sixteen elements, those from the one `at` there on.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    unsafe fn sum(&self, new: V, at: usize) -> V;

    /// The same once more.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    unsafe fn again(&self, new: V, at: usize) -> V;

    /// Does what is left to do for a group once its sums are there.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    #[inline(always)]
    unsafe fn close(&self, _sums: &[V; HELD], _draws: &Self::Draws, _at: usize) {}
}

/// Nothing.
pub(super) struct Nothing;

impl<V: Vector> Feed<V> for Nothing {
    const STREAM: bool = false;
    type Draws = ();

    #[inline(always)]
    fn draws(&self, _: usize) {}

    #[inline(always)]
    unsafe fn sum(&self, new: V, _: usize) -> V {
        new
    }

    #[inline(always)]
    unsafe fn again(&self, new: V, _: usize) -> V {
        new
    }
}

/// A residual in float32, which the sums become.
pub(super) struct Sums<V, const STREAM: bool> {
    residual: *const f32,
    decay: V,
    sum: *mut f32,
}

impl<V: Vector, const STREAM: bool> Sums<V, STREAM> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(feedback: Feedback<'_>) -> Self {
        let Feedback { residual, decay, sum, .. } = feedback;
        let (residual, sum) = (residual.as_ptr(), sum.as_mut_ptr());
        // SAFETY: the features are the caller's promise.
        Self { residual, decay: unsafe { V::splat(decay) }, sum }
    }
}

impl<V: Vector, const STREAM: bool> Feed<V> for Sums<V, STREAM> {
    const STREAM: bool = STREAM;
    type Draws = ();

    #[inline(always)]
    fn draws(&self, _: usize) {}

    #[inline(always)]
    unsafe fn sum(&self, new: V, at: usize) -> V {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            let sum = new.add_scaled(V::load(self.residual.add(at)), self.decay).normal_or_zero();
            let to = self.sum.add(at);
            if STREAM {
                sum.stream(to);
            } else {
                sum.store(to);
            }
            sum
        }
    }

    #[inline(always)]
    unsafe fn again(&self, _: V, at: usize) -> V {
        // SAFETY: as above; these sums were stored before.
        unsafe { V::load(self.sum.add(at)) }
    }
}

/// The same, where the residual stays what it was: that is written, and the sums stay in the caches.
pub(super) struct Stays<V, const STREAM: bool> {
    sums: Sums<V, false>,
    kept: *mut f32,
}

impl<V: Vector, const STREAM: bool> Stays<V, STREAM> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(feedback: Feedback<'_>, kept: &mut [f32]) -> Self {
        // SAFETY: the features are the caller's promise.
        Self { sums: unsafe { Sums::new(feedback) }, kept: kept.as_mut_ptr() }
    }
}

impl<V: Vector, const STREAM: bool> Feed<V> for Stays<V, STREAM> {
    const STREAM: bool = STREAM;
    type Draws = ();

    #[inline(always)]
    fn draws(&self, _: usize) {}

    #[inline(always)]
    unsafe fn sum(&self, new: V, at: usize) -> V {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            let old = V::load(self.sums.residual.add(at));
            let sum = new.add_scaled(old, self.sums.decay).normal_or_zero();
            sum.store(self.sums.sum.add(at));
            let to = self.kept.add(at);
            if STREAM {
                old.stream(to);
            } else {
                old.store(to);
            }
            sum
        }
    }

    #[inline(always)]
    unsafe fn again(&self, new: V, at: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { self.sums.again(new, at) }
    }
}

/// Elements that are asked for ahead where a residual is in bfloat16: with all that is done to an element,
/// the next ones are not under way early enough.
const AHEAD: usize = 512;

/// A residual in bfloat16, where nothing is kept.
pub(super) struct Widened<V> {
    residual: *const bf16,
    decay: V,
    sum: *mut f32,
}

impl<V: Vector> Widened<V> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(residual: *const bf16, decay: f32, sum: *mut f32) -> Self {
        // SAFETY: the features are the caller's promise.
        Self { residual, decay: unsafe { V::splat(decay) }, sum }
    }

    /// What there was, and the sums.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    #[inline(always)]
    unsafe fn pair(&self, new: V, at: usize) -> (V, V) {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            let old = V::load_bf16(self.residual.add(at));
            let sum = new.add_scaled(old, self.decay).normal_or_zero();
            sum.store(self.sum.add(at));
            (old, sum)
        }
    }
}

impl<V: Vector> Feed<V> for Widened<V> {
    const STREAM: bool = false;
    const AHEAD: usize = AHEAD;
    type Draws = ();

    #[inline(always)]
    fn draws(&self, _: usize) {}

    #[inline(always)]
    fn fetch(&self, at: usize) {
        V::fetch(self.residual.wrapping_add(at), GROUP);
    }

    #[inline(always)]
    unsafe fn sum(&self, new: V, at: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { self.pair(new, at).1 }
    }

    #[inline(always)]
    unsafe fn again(&self, _: V, at: usize) -> V {
        // SAFETY: as the caller promises; these sums were stored before.
        unsafe { V::load(self.sum.add(at)) }
    }
}

/// A residual in bfloat16, and what becomes of it: the sums, rounded, or with `FILTER` what a filter
/// takes in.
pub(super) struct Rounding<V, const FILTER: bool, const STREAM: bool> {
    old: Widened<V>,
    next: *mut bf16,
    beta: V,
    /// What is rounded: the sums, or what a filter takes in.
    kept: *mut f32,
    key: Key,
    first: u32,
}

impl<V: Vector, const FILTER: bool, const STREAM: bool> Rounding<V, FILTER, STREAM> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(
        residual: &[bf16],
        decay: f32,
        sum: &mut [f32],
        keep: Keep<'_>,
    ) -> Self {
        let Keep { next, filter, key, first, .. } = keep;
        // One pointer to the sums, that another may be taken from it.
        let (residual, next, sum) = (residual.as_ptr(), next.as_mut_ptr(), sum.as_mut_ptr());
        let (beta, kept) = filter.map_or((1.0, sum), |(beta, kept)| (beta, kept.as_mut_ptr()));
        // SAFETY: the features are the caller's promise.
        let (old, beta) = unsafe { (Widened::new(residual, decay, sum), V::splat(beta)) };
        Self { old, next, beta, kept, key, first }
    }

    /// Rounds a pair of vectors of a group, the first of which is its `j`-th, by the group's draws.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    #[inline(always)]
    unsafe fn round(&self, sums: [V; 2], draws: &[u32; LANES], j: usize, at: usize) {
        let draws = [dither::parts(draws, j), dither::parts(draws, j + 1)];
        // SAFETY: as the caller promises.
        unsafe {
            let kept = if FILTER || !V::HOLDS {
                [V::load(self.kept.add(at)), V::load(self.kept.add(at + LANES))]
            } else {
                sums
            };
            V::round(kept, draws, self.next.add(at), STREAM);
        }
    }
}

impl<V: Vector, const FILTER: bool, const STREAM: bool> Feed<V> for Rounding<V, FILTER, STREAM> {
    const STREAM: bool = STREAM;
    const AHEAD: usize = AHEAD;
    type Draws = [u32; LANES];

    #[inline(always)]
    fn draws(&self, at: usize) -> [u32; LANES] {
        dither::draws(self.key, self.first.wrapping_add(at as u32))
    }

    #[inline(always)]
    fn fetch(&self, at: usize) {
        <Widened<V> as Feed<V>>::fetch(&self.old, at);
    }

    #[inline(always)]
    unsafe fn sum(&self, new: V, at: usize) -> V {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            let (old, sum) = self.old.pair(new, at);
            if FILTER {
                old.add_scaled(new, self.beta).normal_or_zero().store(self.kept.add(at));
            }
            sum
        }
    }

    #[inline(always)]
    unsafe fn again(&self, new: V, at: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { self.old.again(new, at) }
    }

    #[inline(always)]
    unsafe fn close(&self, sums: &[V; HELD], draws: &[u32; LANES], at: usize) {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            // Not a loop, which the compiler may leave one.
            self.round([sums[0], sums[1]], draws, 0, at);
            self.round([sums[2], sums[3]], draws, 2, at + 2 * LANES);
        }
    }
}
