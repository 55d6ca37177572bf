//! What is made of the elements of a gradient as they are loaded.

use super::vector::Vector;
use super::{Moment, Momentum};
use crate::simd::{adam, momentum};

/// What is made of the elements of a gradient before they are added.
pub(super) trait Make<V: Vector> {
    /// That of sixteen elements, the first of which is the one `at` there. What it writes goes past the
    /// caches if it `streams`.
    ///
    /// # Safety
    ///
    /// As the methods of [`Vector`].
    unsafe fn make(&self, v: V, at: usize, streams: bool) -> V;
}

/// Nothing else.
pub(super) struct AsTheyAre;

impl<V: Vector> Make<V> for AsTheyAre {
    #[inline(always)]
    unsafe fn make(&self, v: V, _: usize, _: bool) -> V {
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
    least: V,
    rate: V,
    most: V,
}

impl<V: Vector> Steps<V> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(moment: Moment<'_>) -> Self {
        let Moment { second, next, rule } = moment;
        let adam::Rule { keep, take, correction, eps, least, rate } = rule;
        let (second, next) = (second.as_ptr(), next.as_mut_ptr());
        // SAFETY: the features are the caller's promise.
        unsafe {
            let (keep, take) = (V::splat(keep), V::splat(take));
            let (correction, eps) = (V::splat(correction), V::splat(eps));
            let (least, rate, most) = (V::splat(least), V::splat(rate), V::splat(f32::MAX));
            Self { second, next, keep, take, correction, eps, least, rate, most }
        }
    }
}

impl<V: Vector> Make<V> for Steps<V> {
    #[inline(always)]
    unsafe fn make(&self, v: V, at: usize, streams: bool) -> V {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            let square = self.take.times(v).times(v);
            let old = V::load(self.second.add(at));
            let next = self.keep.times(old).plus(square).at_most(self.most).normal_or_zero();
            let to = self.next.add(at);
            if streams {
                next.stream(to);
            } else {
                next.store(to);
            }
            let root = self.correction.times(next.root()).plus(self.eps);
            let root = root.at_least(self.least.times(v).magnitude());
            self.rate.times(v.over(root))
        }
    }
}

/// What a momentum makes of them, by [`momentum::Rule::of`].
pub(super) struct Moved<V, const NESTEROV: bool> {
    momentum: *const f32,
    next: *mut f32,
    factor: V,
    scale: V,
}

impl<V: Vector, const NESTEROV: bool> Moved<V, NESTEROV> {
    /// # Safety
    ///
    /// The CPU has the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(of: &mut Momentum<'_>) -> Self {
        let momentum::Rule { momentum: factor, scale, .. } = of.rule;
        let (momentum, next) = (of.momentum.as_ptr(), of.next.as_mut_ptr());
        // SAFETY: the features are the caller's promise.
        let (factor, scale) = unsafe { (V::splat(factor), V::splat(scale)) };
        Self { momentum, next, factor, scale }
    }
}

impl<V: Vector, const NESTEROV: bool> Make<V> for Moved<V, NESTEROV> {
    #[inline(always)]
    unsafe fn make(&self, v: V, at: usize, streams: bool) -> V {
        // SAFETY: features and pointers are the caller's promise.
        unsafe {
            let (g, old) = (self.scale.times(v), V::load(self.momentum.add(at)));
            let next = if NESTEROV {
                self.factor.times(g.plus(old))
            } else {
                g.plus(self.factor.times(old))
            };
            let (next, to) = (next.normal_or_zero(), self.next.add(at));
            if streams {
                next.stream(to);
            } else {
                next.store(to);
            }
            if NESTEROV { g.plus(next) } else { next }
        }
    }
}
